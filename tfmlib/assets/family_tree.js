// The family tree, part by part: two models side by side, and how many parts separate every other model from the first.
// State: models (names), publishers (with the year), parts (names), values (model, part: in words), left and right (the models that are shown).
function render({ model, el }) {
  const models = model.get("models"), who = model.get("publishers"), parts = model.get("parts"), values = model.get("values");
  const keys = ["left", "right"], start = JSON.stringify(keys.map(key => [key, model.get(key)]));
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt()};`);
  const options = models.map((name, i) => `<option value="${i}">${safe(name)}${who[i] ? ` (${safe(who[i])})` : ""}</option>`).join("");
  const differing = (a, b) => parts.filter((_, n) => values[a][n] !== values[b][n]);
  el.innerHTML = `
    <div class="tfm-controls"><label class="tfm-control">model <select>${options}</select></label>
      <label class="tfm-control">beside <select>${options}</select></label>
      <button type="button" class="tfm-reset">reset</button></div>
    <table class="tfm-table tfm-kin"><thead><tr><th scope="col">part</th><th scope="col"></th><th scope="col"></th></tr></thead>
      <tbody>${parts.map(name => `<tr><th scope="row">${safe(name)}</th><td></td><td></td></tr>`).join("")}</tbody></table>
    <output class="tfm-readout"></output>
    <div class="tfm-controls"><span class="tfm-buttons tfm-wrap" role="group" aria-label="the other models, by the number of parts in which they differ"></span></div>`;
  const $ = q => el.querySelector(q), selects = [...el.querySelectorAll("select")], rows = [...el.querySelectorAll("tbody tr")], near = $(".tfm-buttons");
  const put = (name, value) => { model.set(name, value); model.save_changes(); };

  function draw() {
    const [a, b] = keys.map(key => model.get(key)), odd = differing(a, b);
    selects.forEach((select, n) => { select.value = [a, b][n]; });
    el.querySelectorAll("thead th").forEach((th, n) => { if (n) th.textContent = models[[a, b][n - 1]]; });
    rows.forEach((row, n) => {
      const [one, two] = row.querySelectorAll("td"), same = values[a][n] === values[b][n];
      row.classList.toggle("tfm-masked", same);
      one.textContent = values[a][n];
      two.textContent = same ? "the same" : values[b][n];
    });
    $(".tfm-readout").textContent = `${models[a]} and ${models[b]} differ in ${odd.length} of ${parts.length} parts${odd.length ? ": " + odd.join(", ") : ""}.`;
    const order = models.map((_, i) => i).filter(i => i !== a).sort((i, j) => differing(a, i).length - differing(a, j).length || i - j);
    const held = document.activeElement && near.contains(document.activeElement) ? document.activeElement.dataset.of : null;
    near.innerHTML = order.map(i => `<button type="button" data-of="${i}" aria-pressed="${i === b}">${safe(models[i])}: ${differing(a, i).length}</button>`).join("");
    for (const button of near.children) {
      button.onclick = () => put("right", Number(button.dataset.of));
      if (button.dataset.of === held) button.focus();
    }
  }

  selects.forEach((select, n) => { select.onchange = () => put(keys[n], Number(select.value)); });
  $(".tfm-reset").onclick = () => JSON.parse(start).forEach(([name, value]) => put(name, value));
  const watched = keys.map(name => "change:" + name);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
