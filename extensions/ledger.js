// The filter of the claims page: by verdict and by topic, kept in the address so that a choice can be shared.
const form = document.querySelector(".tfm-filter");
const claims = [...document.querySelectorAll(".tfm-claim[data-verdict]")];
const sections = [...document.querySelectorAll("section")].filter((s) => s.querySelector(":scope > .tfm-claim[data-verdict]"));
const said = form.querySelector("output");

const apply = () => {
  const chosen = Object.entries(Object.fromEntries(new FormData(form))).filter(([, value]) => value);
  for (const claim of claims) claim.hidden = !chosen.every(([key, value]) => claim.dataset[key] === value);
  for (const section of sections) section.hidden = !section.querySelector(".tfm-claim:not([hidden])");
  const shown = claims.filter((claim) => !claim.hidden).length;
  said.textContent = `${shown} of ${claims.length} claims shown`;
  history.replaceState(null, "", `${location.pathname}${chosen.length ? `?${new URLSearchParams(chosen)}` : ""}${location.hash}`);
};

for (const [key, value] of new URLSearchParams(location.search)) {
  const field = form.elements[key];
  if (field && [...field.options].some((option) => option.value === value)) field.value = value;
}
form.addEventListener("change", apply);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
apply();
