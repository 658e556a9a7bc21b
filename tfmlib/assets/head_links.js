// The heads of one layer, token to token. State: sentences (lists of words), weights (sentence, head, query, key),
// sentence (which is shown), heads (true for those that are shown), query (the query word; −1 for all), least (the least weight drawn).
const STEP = 30, LEFT = 112, RIGHT = 288, WIDE = 400, DASHES = ["", "7 4", "2 4", "9 3 2 3", "12 4", "1 3"];

function render({ model, el }) {
  const sentences = model.get("sentences"), weights = model.get("weights"), count = weights[0].length;
  const start = JSON.stringify(["sentence", "heads", "query", "least"].map(key => [key, model.get(key)]));
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt()};`);
  const colour = h => `var(--tfm-${h % 6 + 1})`;
  const key = h => `<svg class="tfm-key" viewBox="0 0 24 8" aria-hidden="true"><path d="M0 4H24" stroke="${colour(h)}" stroke-dasharray="${DASHES[h % 6]}"/></svg>`;

  el.innerHTML = `
    <div class="tfm-controls">
      <label class="tfm-control">sentence <select>${sentences.map((s, i) => `<option value="${i}">${safe(s.join(" "))}</option>`).join("")}</select></label>
      <span class="tfm-buttons tfm-wrap" role="group" aria-label="heads that are shown">${weights[0].map((_, h) => `<button type="button">${key(h)} head ${h}</button>`).join("")}</span>
    </div>
    <div class="tfm-controls"><span class="tfm-buttons tfm-wrap" role="group" aria-label="query word"></span><button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">smallest weight drawn: <span class="tfm-value" aria-hidden="true"></span><input type="range" min="0" max="0.5" step="0.01"></label></div>
    <svg class="tfm-links" role="img" font-size="14"></svg>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), select = $("select"), slider = $("input"), [toggles, words] = el.querySelectorAll(".tfm-buttons");
  const put = (name, value) => { model.set(name, value); model.save_changes(); };
  let hovered = -1;                                // a word under the pointer is the query for as long as it is there

  function lines(W, shown, query, least) {         // a path for each weight worth seeing, the weak ones first; heads side by side at both ends
    const every = [];
    shown.forEach((h, place) => W[h].forEach((row, i) => row.forEach((w, j) => {
      if (w >= Math.max(least, .005) && (query < 0 || i === query)) every.push({ h, i, j, w, off: 3 * (place - (shown.length - 1) / 2) });
    })));
    return every.sort((a, b) => a.w - b.w).map(({ h, i, j, w, off }) => {
      const y = k => 16 + STEP * k + off;
      return `<path d="M${LEFT} ${y(i)}C${LEFT + 60} ${y(i)} ${RIGHT - 60} ${y(j)} ${RIGHT} ${y(j)}" stroke="${colour(h)}" stroke-dasharray="${DASHES[h % 6]}" stroke-width="${(.5 + 5 * w).toFixed(1)}" stroke-opacity="${(.12 + .88 * w).toFixed(2)}"/>`;
    }).join("");
  }

  function read(W, shown, tokens, query) {
    if (!shown.length) return "No head is shown: choose one.";
    const best = (h, i) => { const j = W[h][i].indexOf(Math.max(...W[h][i])); return `${tokens[j]}${j === i ? " (itself)" : ""} ${W[h][i][j].toFixed(2)}`; };
    if (query >= 0) return `“${tokens[query]}” attends to: ${shown.map(h => `head ${h} ${best(h, query)}`).join(", ")}`;
    return `All words. Mean of each word's largest weight: ${shown.map(h => `head ${h} ${(W[h].reduce((sum, row) => sum + Math.max(...row), 0) / tokens.length).toFixed(2)}`).join(", ")}`;
  }

  function draw() {
    const s = model.get("sentence"), tokens = sentences[s], W = weights[s], on = model.get("heads"), n = tokens.length;
    const shown = on.map((yes, h) => yes ? h : -1).filter(h => h >= 0), query = hovered >= 0 ? hovered : Math.min(model.get("query"), n - 1);
    if (words.dataset.of !== String(s)) {
      words.dataset.of = s;
      words.innerHTML = `<button type="button">all words</button>` + tokens.map(t => `<button type="button">${safe(t)}</button>`).join("");
      [...words.children].forEach((b, i) => {
        b.onclick = () => put("query", i - 1);
        b.onpointerenter = e => { if (e.pointerType === "mouse") { hovered = i - 1; draw(); } };
        b.onpointerleave = () => { hovered = -1; draw(); };
      });
    }
    select.value = s;
    slider.value = model.get("least");
    $("label .tfm-value").textContent = model.get("least").toFixed(2);
    [...toggles.children].forEach((b, h) => b.setAttribute("aria-pressed", on[h]));
    [...words.children].forEach((b, i) => b.setAttribute("aria-pressed", i - 1 === model.get("query")));
    const word = (x, anchor, t, i, side) => `<text x="${x}" y="${21 + STEP * i}" text-anchor="${anchor}"${side === "q" && i === query ? ' class="tfm-asks"' : ""}>${safe(t)}</text>`;
    $(".tfm-links").setAttribute("viewBox", `0 0 ${WIDE} ${STEP * n + 4}`);
    $(".tfm-links").setAttribute("aria-label", read(W, shown, tokens, query));
    $(".tfm-links").innerHTML = `<g fill="none" stroke-linecap="butt">${lines(W, shown, query, model.get("least"))}</g>` +
      tokens.map((t, i) => word(LEFT - 10, "end", t, i, "q") + word(RIGHT + 10, "start", t, i, "k")).join("") +
      tokens.map((_, i) => `<rect class="tfm-touch" data-i="${i}" x="0" y="${2 + STEP * i}" width="${LEFT}" height="${STEP - 2}"/>`).join("");
    $(".tfm-readout").textContent = read(W, shown, tokens, query);
  }

  slider.oninput = () => put("least", Number(slider.value));
  select.onchange = () => put("sentence", Number(select.value));
  [...toggles.children].forEach((b, h) => { b.onclick = () => put("heads", model.get("heads").map((yes, k) => k === h ? !yes : yes)); });
  $(".tfm-reset").onclick = () => JSON.parse(start).forEach(([name, value]) => put(name, value));
  $(".tfm-links").onclick = e => { const i = e.target.dataset.i; if (i !== undefined) put("query", model.get("query") === Number(i) ? -1 : Number(i)); };
  const watched = ["sentence", "heads", "query", "least"].map(name => "change:" + name);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
