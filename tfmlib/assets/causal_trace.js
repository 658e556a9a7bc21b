// What is recovered when one state is copied from another run: 0 as without a patch, 1 as in the clean run. State: sentences (lists of words), kinds (what is replaced),
// rows (for each kind, the names of its depths), restored (sentence, kind, depth, word); sentence, kind, depth, word (the cell read out).
const CELL = 62, TALL = 34, LEFT = 118, TOP = 24;

function render({ model, el }) {
  const sentences = model.get("sentences"), kinds = model.get("kinds"), rows = model.get("rows"), restored = model.get("restored");
  const keys = ["sentence", "kind", "depth", "word"], start = JSON.stringify(keys.map(key => [key, model.get(key)]));
  const number = v => Math.abs(v) < .005 ? "0" : v.toFixed(2).replace("-", "−");
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt()};`);
  el.innerHTML = `
    <div class="tfm-controls"><label class="tfm-control">question <select>${sentences.map((s, i) => `<option value="${i}">${safe(s.join(" "))}</option>`).join("")}</select></label>
      <button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-controls"><span class="tfm-buttons tfm-wrap" role="group" aria-label="what is replaced">${kinds.map(k => `<button type="button">${safe(k)}</button>`).join("")}</span></div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">depth <span class="tfm-value" aria-hidden="true"></span><input type="range" min="0" step="1" data-key="depth"></label></div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">word <span class="tfm-value" aria-hidden="true"></span><input type="range" min="0" step="1" data-key="word"></label></div>
    <svg class="tfm-plot" role="img" font-size="13"></svg>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), select = $("select"), buttons = [...el.querySelectorAll(".tfm-buttons button")], sliders = [...el.querySelectorAll("input")];
  const put = (name, value) => { model.set(name, value); model.save_changes(); };
  const now = () => {                              // the cell, kept inside the grid that is shown
    const words = sentences[model.get("sentence")], names = rows[model.get("kind")];
    return { words, names, depth: Math.min(model.get("depth"), names.length - 1), word: Math.min(model.get("word"), words.length - 1) };
  };

  function draw() {
    const { words, names, depth, word } = now(), grid = restored[model.get("sentence")][model.get("kind")], value = grid[depth][word];
    select.value = model.get("sentence");
    buttons.forEach((b, i) => b.setAttribute("aria-pressed", i === model.get("kind")));
    [[names, depth], [words, word]].forEach(([list, at], i) => {
      sliders[i].max = list.length - 1;
      sliders[i].value = at;
      sliders[i].setAttribute("aria-valuetext", list[at]);
      sliders[i].parentElement.querySelector(".tfm-value").textContent = list[at];
    });
    const high = d => TOP + (names.length - 1 - d) * TALL;       // the first depth at the bottom
    const cells = grid.map((line, d) => line.map((v, t) => `<rect x="${LEFT + t * CELL}" y="${high(d)}" width="${CELL - 2}" height="${TALL - 2}" rx="3" data-d="${d}" data-t="${t}"
      style="fill:color-mix(in oklab,var(--tfm-seq-hi) ${Math.round(100 * Math.min(1, Math.max(0, v)))}%,var(--tfm-seq-lo));stroke:${d === depth && t === word ? "var(--tfm-ink)" : "none"};stroke-width:2"/>
      <text x="${LEFT + (t + .5) * CELL - 1}" y="${high(d) + 21}" text-anchor="middle" style="fill:var(--tfm-ink);pointer-events:none">${number(v)}</text>`).join("")).join("");
    const heads = words.map((w, t) => `<text x="${LEFT + (t + .5) * CELL - 1}" y="15" text-anchor="middle">${safe(w)}</text>`).join("");
    const sides = names.map((n, d) => `<text x="${LEFT - 8}" y="${high(d) + 21}" text-anchor="end">${safe(n)}</text>`).join("");
    const said = `With the ${kinds[model.get("kind")]} of ${names[depth]} at “${words[word]}” copied from the clean run, ${number(value)} of the difference is recovered (0: no patch, 1: clean run).`
      .replace("state of before", "state before").replace("state of after", "state after");
    $("svg").setAttribute("viewBox", `0 0 ${LEFT + CELL * words.length + 4} ${TOP + TALL * names.length + 4}`);
    $("svg").setAttribute("aria-label", said);
    $("svg").innerHTML = heads + sides + cells;
    $(".tfm-readout").textContent = said;
  }

  select.onchange = () => put("sentence", Number(select.value));
  buttons.forEach((b, i) => { b.onclick = () => put("kind", i); });
  sliders.forEach(s => { s.oninput = () => put(s.dataset.key, Number(s.value)); });
  $("svg").onclick = e => { const { d, t } = e.target.dataset; if (d !== undefined) { put("depth", Number(d)); put("word", Number(t)); } };
  $(".tfm-reset").onclick = () => JSON.parse(start).forEach(([key, value]) => put(key, value));
  const watched = keys.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
