// What a page does beyond being read: theme button, copy buttons, keyboard for what scrolls, the place in the contents, the glossary's sentences, print.
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const system = () => (dark.matches ? "dark" : "light");
const forced = matchMedia("(forced-colors: active)");      // the reader's own colours: the system's theme, whatever was chosen here
const stored = (change) => { try { return change(localStorage); } catch { return null; } };  // storage may be forbidden

const button = document.querySelector(".tfm-theme");
const show = (theme) => { root.dataset.theme = theme; button.setAttribute("aria-pressed", theme === "dark"); };
show(root.dataset.theme);
button.addEventListener("click", () => {
  const theme = root.dataset.theme === "dark" ? "light" : "dark";
  stored((s) => (theme === system() ? s.removeItem("tfm-theme") : s.setItem("tfm-theme", theme)));  // back to the system's: follow it again
  show(theme);
});
for (const query of [dark, forced]) query.addEventListener("change", () => show((!forced.matches && stored((s) => s.getItem("tfm-theme"))) || system()));

for (const box of document.querySelectorAll(".cell_input .highlight, .tfm-text > section .highlight:not(.cell .highlight, [id^='tfmlib.'] .highlight)")) {
  const copy = Object.assign(document.createElement("button"), { type: "button", className: "tfm-copy", textContent: "Copy" });
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(box.querySelector("pre").innerText.trimEnd());
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  box.append(copy);
}

const scrollers = document.querySelectorAll(".tfm-text :is(pre, .pst-scrollable-table-container, .output, .katex-display, .tfm-results, .tfm-scroll)");
const reach = (element) => {                     // what scrolls sideways is in the tab order: arrow keys move it
  if (element.scrollWidth > element.clientWidth || element === document.activeElement) element.tabIndex = 0;
  else element.removeAttribute("tabindex");
};
const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => reach(target)));   // comes once a section is laid out
scrollers.forEach((element) => { element.tabIndex = 0; resized.observe(element); });
const again = () => scrollers.forEach(reach);
document.fonts.ready.then(again);
document.fonts.addEventListener("loadingdone", again);   // the fonts of a formula come once it is laid out, and may make it wider

addEventListener("pagehide", () => {              // who leaves at the heading that the address names comes back to it, wherever it is by then
  const top = document.querySelector(":target")?.getBoundingClientRect().top;
  history.scrollRestoration = top >= 0 && top < 200 ? "manual" : "auto";
});
addEventListener("load", () => {
  if (history.scrollRestoration === "manual") document.querySelector(":target")?.scrollIntoView();
  setTimeout(() => (history.scrollRestoration = "auto"), 1000);       // at once, the browser would still scroll to where the reader was
});

const nav = document.getElementById("tfm-nav");
const here = nav.querySelector("[aria-current]");
if (here) nav.scrollTop = here.offsetTop - nav.clientHeight / 3;
nav.addEventListener("click", (event) => event.target.closest("a") && nav.matches(":popover-open") && nav.hidePopover());
const links = new Map([...nav.querySelectorAll(".tfm-sections a[href^='#']")].map((a) => [decodeURIComponent(a.hash.slice(1)), a]));
const seen = new IntersectionObserver((entries) => entries.filter((e) => e.isIntersecting).forEach(({ target }) => {
  links.forEach((a) => a.removeAttribute("aria-current"));
  links.get(target.id).setAttribute("aria-current", "true");
}), { rootMargin: "-15% 0px -75% 0px" });
for (const id of links.keys()) { const section = document.getElementById(id); if (section) seen.observe(section); }

const tip = Object.assign(document.createElement("div"), { id: "tfm-tip", className: "tfm-tip", role: "tooltip", hidden: true });
let term, leaving;                               // the link to the glossary or to a reference whose sentence is shown; a pointer on its way from one to the other
const hideTip = () => { clearTimeout(leaving); term?.removeAttribute("aria-describedby"); term = undefined; tip.hidden = true; };
const placeTip = () => {
  const lines = term.getClientRects(), at = lines[lines.length - 1], own = tip.getBoundingClientRect();
  const below = at.bottom + 6 + own.height < innerHeight;
  tip.style.left = `${Math.max(8, Math.min(at.left, root.clientWidth - own.width - 8))}px`;
  tip.style.top = `${below ? at.bottom + 6 : lines[0].top - own.height - 6}px`;
};
const showTip = (link) => {
  hideTip();
  term = link;
  tip.textContent = link.dataset.sentence;
  link.setAttribute("aria-describedby", tip.id);
  tip.hidden = false;
  placeTip();
};
const terms = document.querySelectorAll(".tfm-text a:is([href*='glossary.html#term-'], [href*='bibliography.html#'])[title]");
if (terms.length) document.body.append(tip);
for (const link of terms) {
  link.dataset.sentence = link.title;            // the browser's own tooltip knows no keyboard and no finger
  link.removeAttribute("title");
  link.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && showTip(link));
  link.addEventListener("focus", () => link.matches(":focus-visible") && showTip(link));
  link.addEventListener("blur", hideTip);
  link.addEventListener("click", (event) => {    // a finger sees the sentence first, and follows the link with the second touch
    if (event.pointerType !== "touch" || term === link) return;
    event.preventDefault();
    showTip(link);
  });
}
const within = (event) => term?.contains(event.target) || tip.contains(event.target);
document.addEventListener("pointerdown", (event) => { if (!within(event)) hideTip(); });
document.addEventListener("pointermove", (event) => {
  clearTimeout(leaving);
  if (term && !within(event)) leaving = setTimeout(hideTip, 250);
});
addEventListener("scroll", () => term && placeTip(), { passive: true });     // it goes with its word

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  const asked = event.key === "k" && (event.ctrlKey || event.metaKey) || event.key === "/" && !event.target.closest("input, textarea, select, [contenteditable]");
  if (!asked) return;
  const field = document.getElementById("tfm-q");
  if (field?.checkVisibility()) { event.preventDefault(); field.focus(); }
});

let before;
addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; });    // a closed fold stays closed
addEventListener("afterprint", () => { root.dataset.theme = before; });
