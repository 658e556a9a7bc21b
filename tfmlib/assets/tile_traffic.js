// Attention in tiles, one step after another. State: scores (queries × keys), values (a number for each key), width (numbers of a query,
// key and value), rows and cols (of a tile), causal, step (how many steps are done).
const CELL = 20, LEFT = 82, TOP = 48, BYTES = 2;

function steps(T, S, rows, cols, causal) {       // a query tile comes in; its key tiles pass by; its output leaves
  const every = [], cut = (start, stop, size) => { const out = []; for (let a = start; a < stop; a += size) out.push([a, Math.min(a + size, stop)]); return out; };
  for (const i of cut(0, T, rows)) {
    every.push({ kind: "q", i });
    for (const j of cut(0, causal ? Math.min(S, i[1] + S - T) : S, cols)) every.push({ kind: "kv", i, j });
    every.push({ kind: "out", i });
  }
  return every;
}

function moved(every, width) {                   // bytes that these steps bring in, and take out
  let read = 0, written = 0;
  for (const { kind, i, j } of every) {
    if (kind === "q") read += (i[1] - i[0]) * width;
    if (kind === "kv") read += (j[1] - j[0]) * 2 * width;
    if (kind === "out") written += (i[1] - i[0]) * (width + 1);
  }
  return { read: BYTES * read, written: BYTES * written };
}

function remembered(scores, values, done, T, S, causal) {   // for each query: maximum, sum, mixture of the keys it has seen
  const seen = scores.map(() => ({ m: -Infinity, l: 0, o: 0 }));
  for (const { kind, i, j } of done) if (kind === "kv") for (let t = i[0]; t < i[1]; t++) {
    const here = []; for (let s = j[0]; s < j[1]; s++) if (!causal || s <= t + S - T) here.push(s);
    if (!here.length) continue;
    const row = seen[t], m = Math.max(row.m, ...here.map(s => scores[t][s])), fade = row.l ? Math.exp(row.m - m) : 0;
    seen[t] = { m, l: fade * row.l + here.reduce((a, s) => a + Math.exp(scores[t][s] - m), 0), o: fade * row.o + here.reduce((a, s) => a + Math.exp(scores[t][s] - m) * values[s], 0) };
  }
  return seen;
}

function render({ model, el }) {
  const scores = model.get("scores"), values = model.get("values"), width = model.get("width"), T = scores.length, S = scores[0].length;
  const names = ["rows", "cols", "causal", "step"], start = names.map(key => [key, model.get(key)]);
  const digits = (x, n) => x === -Infinity ? "−∞" : x.toFixed(n).replace("-", "−"), many = n => n.toLocaleString("en");
  const sizes = n => [...Array(n).keys()].map(k => `<option>${k + 1}</option>`).join("");
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  el.innerHTML = `
    <div class="tfm-controls">
      <label class="tfm-control">queries in a tile <select class="tfm-rows">${sizes(T)}</select></label>
      <label class="tfm-control">keys in a tile <select class="tfm-cols">${sizes(S)}</select></label>
      <button type="button" class="tfm-causal">causal</button>
    </div>
    <div class="tfm-controls">
      <span class="tfm-buttons" role="group" aria-label="steps"><button type="button" class="tfm-back">back</button><button type="button" class="tfm-next">next</button><button type="button" class="tfm-play">play</button></span>
      <button type="button" class="tfm-reset">reset</button>
    </div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">step <span class="tfm-value tfm-said" aria-hidden="true"></span><input type="range" min="0" step="1"></label></div>
    <svg class="tfm-tiles" role="img" viewBox="0 0 ${LEFT + S * CELL + 4} ${TOP + T * CELL + 4}" font-size="13"></svg>
    <table class="tfm-table tfm-memory"><thead><tr><th scope="col">query</th><th scope="col">maximum m</th><th scope="col">sum ℓ</th><th scope="col">o / ℓ</th></tr></thead><tbody></tbody></table>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), slider = $("input"), play = $(".tfm-play");
  let timer = 0;

  function picture(every, n) {                    // the scores: forgotten, in fast memory, not yet, never
    const now = n ? every[n - 1] : null, done = new Set(), needed = new Set(), causal = model.get("causal");
    every.forEach(({ kind, i, j }, at) => { if (kind === "kv") for (let t = i[0]; t < i[1]; t++) for (let s = j[0]; s < j[1]; s++) { needed.add(t * S + s); if (at < n) done.add(t * S + s); } });
    const inTile = (t, s) => now && now.kind === "kv" && t >= now.i[0] && t < now.i[1] && s >= now.j[0] && s < now.j[1], out = [];
    for (let t = 0; t < T; t++) for (let s = 0; s < S; s++) {
      const cls = inTile(t, s) ? (causal && s > t + S - T ? "tfm-hid" : "tfm-fast") : done.has(t * S + s) ? "tfm-done" : needed.has(t * S + s) ? "tfm-todo" : "tfm-never";
      out.push(`<rect class="${cls}" x="${LEFT + s * CELL}" y="${TOP + t * CELL}" width="${CELL - 2}" height="${CELL - 2}" rx="2"/>`);
    }
    const within = (part, k) => part && k >= part[0] && k < part[1];
    for (let t = 0; t < T; t++) {
      const y = TOP + t * CELL, written = every.slice(0, n).some(e => e.kind === "out" && within(e.i, t));
      out.push(`<rect class="tfm-mq ${now && now.kind !== "out" && within(now.i, t) ? "tfm-in" : ""}" x="28" y="${y}" width="12" height="${CELL - 2}" rx="2"/>`);
      out.push(`<rect class="tfm-mo ${written ? "tfm-in" : ""}" x="44" y="${y}" width="12" height="${CELL - 2}" rx="2"/>`);
    }
    for (let s = 0; s < S; s++) ["tfm-mk", "tfm-mv"].forEach((cls, k) => out.push(`<rect class="${cls} ${now && now.kind === "kv" && within(now.j, s) ? "tfm-in" : ""}" x="${LEFT + s * CELL}" y="${14 + 16 * k}" width="${CELL - 2}" height="12" rx="2"/>`));
    out.push(`<text x="34" y="${TOP - 6}">Q</text><text x="50" y="${TOP - 6}">O</text><text x="${LEFT - 9}" y="25">K</text><text x="${LEFT - 9}" y="41">V</text>`);
    $("svg").innerHTML = out.join("");
  }

  function draw() {
    const rows = model.get("rows"), cols = model.get("cols"), causal = model.get("causal"), every = steps(T, S, rows, cols, causal);
    const n = Math.min(model.get("step"), every.length), now = n ? every[n - 1] : null, { read, written } = moved(every.slice(0, n), width), whole = moved(every, width);
    picture(every, n);
    const span = (name, [a, b]) => b - a === 1 ? `${name} ${a}` : `${name}s ${a} to ${b - 1}`, verb = (part, one, more) => part[1] - part[0] === 1 ? one : more;
    const said = !now ? "Everything lies in slow memory." : now.kind === "q" ? `Fetched, to stay: ${span("query", now.i).replace("querys", "queries")}.` : now.kind === "kv" ? `${span("Key", now.j)} and ${verb(now.j, "its value", "their values")} for ${span("query", now.i).replace("querys", "queries")}: scores computed, used, forgotten.` : `Sent out, with ${verb(now.i, "its log-sum-exp", "a log-sum-exp each")}: ${span("output", now.i)}.`;
    const held = !now || now.kind === "out" ? 0 : rowsOf(now.i) * (2 * width + 2) + (now.kind === "kv" ? rowsOf(now.i) * (width + 2) + rowsOf(now.j) * (2 * width + rowsOf(now.i)) : 0);
    $("svg").setAttribute("aria-label", `${T} queries by ${S} keys. ${said}`);
    const at = now ? now.i : [0, Math.min(rows, T)], seen = remembered(scores, values, every.slice(0, n), T, S, causal);
    $("tbody").innerHTML = seen.slice(...at).map((row, k) => `<tr><th scope="row">${at[0] + k}</th><td>${digits(row.m, 2)}</td><td>${digits(row.l, 3)}</td><td>${row.l ? digits(row.o / row.l, 2) : "–"}</td></tr>`).join("");
    $(".tfm-rows").value = rows; $(".tfm-cols").value = cols;
    $(".tfm-causal").setAttribute("aria-pressed", causal);
    slider.max = every.length; slider.value = n;
    slider.setAttribute("aria-valuetext", `${n} of ${every.length}: ${said}`);
    $("label .tfm-value").textContent = `${n} of ${every.length}: ${said}`;
    $(".tfm-back").disabled = n === 0; $(".tfm-next").disabled = n === every.length;
    const plain = BYTES * (4 * T * S) + whole.read + whole.written - BYTES * T;
    $(".tfm-readout").textContent = `read ${many(read)} B, written ${many(written)} B; at the end ${many(whole.read + whole.written)} B. In three steps${causal ? ", over the same tiles and the whole matrix" : ""}: ${many(plain)} B. In fast memory now: ${many(BYTES * held)} B.`;
  }
  const rowsOf = ([a, b]) => b - a;

  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  const count = () => steps(T, S, model.get("rows"), model.get("cols"), model.get("causal")).length;
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "play"; };
  const move = by => put("step", Math.max(0, Math.min(count(), Math.min(model.get("step"), count()) + by)));
  const choose = (key, value) => { stop(); put("step", 0); put(key, value); };
  $(".tfm-rows").onchange = e => choose("rows", Number(e.target.value));
  $(".tfm-cols").onchange = e => choose("cols", Number(e.target.value));
  $(".tfm-causal").onclick = () => choose("causal", !model.get("causal"));
  $(".tfm-back").onclick = () => { stop(); move(-1); };
  $(".tfm-next").onclick = () => { stop(); move(1); };
  $(".tfm-reset").onclick = () => { stop(); start.forEach(([key, value]) => put(key, value)); };
  slider.oninput = () => { stop(); put("step", Number(slider.value)); };
  play.onclick = () => {
    if (timer) return stop();
    if (model.get("step") >= count()) put("step", 0);
    play.textContent = "stop";
    timer = setInterval(() => { move(1); if (model.get("step") >= count()) stop(); }, still.matches ? 1500 : 600);
  };
  const watched = names.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => { stop(); watched.forEach(event => model.off(event, draw)); };
}

export default { render };
