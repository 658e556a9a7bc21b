// The heads of a small decoder on an example, and, once the model has been loaded, on any sentence.
// State: text and lead (what stands before every text), tokens of both as they are printed, thousandths (the weights, times 1,000: layer, head, query, keys up to the query);
// layer, head, query (the token whose weights are shown); name and size of the model. In Jupyter _weights and _tokenizer hold its files.
import { offer, offered, reader, safe } from "./live/running.js";

const MOST = 32, CELL = 14;                       // tokens that are shown; side of a weight
const PLACES = ["itself", "the token before", "the first token", "earlier copies"];

function places(rows, names) {                    // for each of those: the mean weight there, and what equal weights would give
  const copies = names.map((name, t) => names.slice(0, t).flatMap((other, s) => other === name ? [s] : []));
  const chosen = [t => [t], t => [t - 1], () => [0], t => copies[t]];
  return chosen.map(keys => {
    const queries = rows.map((_, t) => t).filter(t => t && keys(t).length), mean = f => queries.reduce((sum, t) => sum + f(t), 0) / queries.length;
    return queries.length ? [mean(t => keys(t).reduce((sum, s) => sum + rows[t][s], 0)), mean(t => keys(t).length / (t + 1))] : null;
  });
}

function render({ model, el }) {
  const keys = ["layer", "head", "query"], start = JSON.stringify(keys.map(key => [key, model.get(key)])), canned = model.get("thousandths").map(heads => heads.map(rows => rows.map(row => row.map(w => w / 1000))));
  const row = (name, n) => `<span class="tfm-buttons tfm-wrap" role="group" aria-label="${name} that is shown">${Array.from({ length: n }, (_, i) => `<button type="button" data-${name}="${i}">${name} ${i}</button>`).join("")}</span>`;
  el.innerHTML = `
    ${offer(model, "and type a sentence of your own")}
    <div class="tfm-live" hidden><label>your sentence <textarea class="tfm-text" rows="2" spellcheck="false"></textarea></label></div>
    <div class="tfm-controls">${row("layer", canned.length)} ${row("head", canned[0].length)} <button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-controls tfm-own" role="group" aria-label="query token; with each, its weight in per cent for the one that is chosen"></div>
    <output class="tfm-readout"></output>
    <svg class="tfm-heat" role="img"></svg>
    <table class="tfm-table tfm-reached"><thead><tr><th scope="col">from all tokens to</th><th scope="col">mean weight</th><th scope="col">equal weights</th></tr></thead>
      <tbody>${PLACES.map(place => `<tr><th scope="row">${place}</th><td class="tfm-digits"></td><td class="tfm-digits"></td></tr>`).join("")}</tbody></table>`;
  const $ = q => el.querySelector(q), text = $("textarea"), group = $(".tfm-own"), cells = [...el.querySelectorAll("tbody tr")].map(r => r.querySelectorAll("td"));
  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  let live = null, tokens = model.get("tokens"), left = 0;

  function read() {                               // the sentence as it is now
    const ids = live.tokenizer.encode(model.get("lead") + text.value), shown = ids.slice(0, MOST);
    left = ids.length - shown.length;
    live.reader.read(shown);
    tokens = shown.map(id => live.tokenizer.printable(id));
  }

  function drawTokens() {                         // the same buttons for as long as the tokens are the same: one of them may have the focus
    if (group.dataset.of === JSON.stringify(tokens)) return;
    group.dataset.of = JSON.stringify(tokens);
    group.innerHTML = tokens.map(token => `<button type="button" class="tfm-token">${safe(token)} <small></small></button>`).join("");
    [...group.children].forEach((button, t) => { button.onclick = () => put("query", t); });
  }

  function draw() {
    const layer = model.get("layer"), head = model.get("head"), query = Math.min(model.get("query"), tokens.length - 1);
    const rows = tokens.map((_, t) => live ? live.reader.steps[t].weights[layer][head] : canned[layer][head][t]), given = rows[query];
    el.querySelectorAll("[data-layer]").forEach((b, i) => b.setAttribute("aria-pressed", i === layer));
    el.querySelectorAll("[data-head]").forEach((b, i) => b.setAttribute("aria-pressed", i === head));
    drawTokens();
    if (!tokens.length) { $(".tfm-readout").textContent = "The sentence has no tokens yet."; return; }
    [...group.children].forEach((button, t) => {
      button.setAttribute("aria-pressed", t === query);
      button.style.setProperty("--part", t > query ? 0 : given[t]);
      button.querySelector("small").textContent = t > query || given[t] < .005 ? "" : Math.round(100 * given[t]);
    });
    const best = given.indexOf(Math.max(...given)), after = rows.slice(query + 1), mean = f => after.reduce((sum, r) => sum + f(r), 0) / after.length;
    const said = `Layer ${layer}, head ${head}: “${tokens[query]}”, token ${query}, attends most to “${tokens[best]}”, token ${best}${best === query ? " (itself)" : ""}: ${given[best].toFixed(2)}. `
      + (after.length ? `From the tokens after it, it gets ${mean(r => r[query]).toFixed(2)} on average; equal weights would give ${mean(r => 1 / r.length).toFixed(2)}.` : "No token comes after it.");
    $(".tfm-readout").textContent = said + (left ? ` Only the first ${MOST} tokens are shown; ${left} more ${left === 1 ? "is" : "are"} left out.` : "");

    const side = 9 * Math.max(...tokens.map(token => [...token].length)) + 8, size = CELL * tokens.length;
    $("svg").setAttribute("viewBox", `0 0 ${side + size + 2} ${size + 2}`);
    $("svg").setAttribute("aria-label", `All weights of this head, a row for each query token. ${said}`);
    $("svg").innerHTML = rows.map((r, t) => `<text x="${side - 6}" y="${CELL * t + 12}" text-anchor="end"${t === query ? ' class="tfm-asks"' : ""}>${safe(tokens[t])}</text>`
      + r.map((w, s) => `<rect x="${side + CELL * s}" y="${CELL * t + 1}" width="${CELL - 1}" height="${CELL - 1}" style="fill:color-mix(in oklab,var(--tfm-w) ${Math.round(100 * Math.min(1, w / .6))}%,var(--tfm-seq-lo))"/>`).join("")).join("")
      + `<rect class="tfm-here-row" x="${side - 1}" y="${CELL * query}" width="${CELL * (query + 1) + 1}" height="${CELL + 1}"/>`;
    places(rows, tokens).forEach((found, i) => cells[i].forEach((cell, j) => { cell.textContent = found ? found[j].toFixed(2) : "–"; }));
  }

  offered(el, model, found => {
    live = found;
    live.reader = reader(live.decoder);
    text.value = model.get("text");
    read();
    draw();
    text.focus();
  });
  text.oninput = () => {
    read();
    if (model.get("query") === tokens.length - 1) draw(); else put("query", tokens.length - 1);
  };
  ["layer", "head"].forEach(name => el.querySelectorAll(`[data-${name}]`).forEach((b, i) => { b.onclick = () => put(name, i); }));
  $("svg").onclick = e => { const box = $("svg").getBoundingClientRect(), t = Math.floor((e.clientY - box.top) / box.height * tokens.length); if (t >= 0 && t < tokens.length) put("query", t); };
  $(".tfm-reset").onclick = () => {
    if (live) { text.value = model.get("text"); read(); }
    JSON.parse(start).forEach(([key, value]) => put(key, value));
    draw();
  };
  const watched = keys.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
