// Cover a word: what each layer of an encoder would fill in, and the best possible answer. State: sentences (lists of words),
// layers (names of the rows), fills (sentence, position, row: [word, probability] in falling order), truth (sentence, position, row:
// probability of the word that was covered), sentence and position (what is shown).
const SHOWN = 4;

function render({ model, el }) {
  const sentences = model.get("sentences"), layers = model.get("layers"), fills = model.get("fills"), truth = model.get("truth");
  const keys = ["sentence", "position"], start = JSON.stringify(keys.map(key => [key, model.get(key)]));
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt()};`);
  const percent = p => p < 0.005 ? "<1 %" : `${Math.round(100 * p)} %`;
  el.innerHTML = `
    <div class="tfm-controls"><label class="tfm-control">sentence <select>${sentences.map((s, i) => `<option value="${i}">${safe(s.join(" "))}</option>`).join("")}</select></label>
      <button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-controls"><span class="tfm-buttons tfm-wrap" role="group" aria-label="word to cover"></span></div>
    <table class="tfm-table tfm-fill"><thead><tr><th scope="col">read after</th><th scope="col">most likely words</th><th scope="col">covered word</th></tr></thead>
      <tbody>${layers.map(name => `<tr><th scope="row">${safe(name)}</th><td></td><td><span class="tfm-digits"></span><span class="tfm-bar"></span></td></tr>`).join("")}</tbody></table>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), select = $("select"), words = $(".tfm-buttons"), rows = [...el.querySelectorAll("tbody tr")];
  const put = (name, value) => { model.set(name, value); model.save_changes(); };

  function draw() {
    const s = model.get("sentence"), tokens = sentences[s], at = Math.min(model.get("position"), tokens.length - 1);
    if (words.dataset.of !== String(s)) {
      words.dataset.of = s;
      words.innerHTML = tokens.map(t => `<button type="button">${safe(t)}</button>`).join("");
      [...words.children].forEach((b, i) => { b.onclick = () => put("position", i); });
    }
    select.value = s;
    [...words.children].forEach((b, i) => b.setAttribute("aria-pressed", i === at));
    rows.forEach((row, n) => {
      const [list, true_] = row.querySelectorAll("td"), p = truth[s][at][n];
      list.textContent = fills[s][at][n].slice(0, SHOWN).map(([word, q]) => `${word} ${percent(q)}`).join(" · ");
      true_.querySelector(".tfm-digits").textContent = percent(p);
      true_.querySelector(".tfm-bar").style.setProperty("--part", p);
    });
    const last = layers.length - 2, best = layers.length - 1;
    $(".tfm-readout").textContent = `“${tokens.map((t, i) => i === at ? "[MASK]" : t).join(" ")}” covers “${tokens[at]}”. The model gives it ${percent(truth[s][at][last])}, the best possible reader ${percent(truth[s][at][best])}.`;
  }

  select.onchange = () => put("sentence", Number(select.value));
  $(".tfm-reset").onclick = () => JSON.parse(start).forEach(([name, value]) => put(name, value));
  const watched = keys.map(name => "change:" + name);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
