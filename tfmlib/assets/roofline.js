// The roofline of a GPU with attention on it. State: peak (10¹² operations a second), bandwidth (10¹² bytes a second), points (lists: who,
// kind, width, causal, queries for each key head, 10¹² operations a second); length (a power of two), width, causal, shared, one (query).
const W = 540, H = 360, LEFT = 52, RIGHT = 136, TOP = 28, BOTTOM = 42, GAP = 18;
const X = [-1, 17], Y = [0.35, 3.12];              // log₂ of operations for each byte; log₁₀ of 10¹² operations a second
const PLAIN = 0, TILES = 1;

function intensity(way, T, S, D, shared, part) {     // operations for each byte that the slow memory sees, one query head's part
  const numbers = 2 * T * D + 2 * S * D / shared;    // queries and outputs; keys and values serve several query heads
  return part * 4 * T * S * D / (2 * numbers + (way === PLAIN ? 8 * T * S : 4 * T));
}

function apart(places, gap) {                        // sorted places moved as little as it takes to lie `gap` apart
  const out = [...places];
  for (let turn = 0; turn < 200; turn++) for (let i = 0; i + 1 < out.length; i++) {
    const push = Math.max(0, gap - out[i + 1] + out[i]) / 2;
    out[i] -= push; out[i + 1] += push;
  }
  return out;
}

function render({ model, el }) {
  const peak = model.get("peak"), bandwidth = model.get("bandwidth"), names = ["length", "width", "causal", "shared", "one"];
  const start = names.map(key => [key, model.get(key)]), many = n => (n >= 100 ? Math.round(n) : Number(n.toPrecision(2))).toLocaleString("en");
  const options = (values, text) => values.map(v => `<option value="${v}">${text ? text(v) : v}</option>`).join("");
  el.innerHTML = `
    <div class="tfm-controls">
      <label class="tfm-control">width of a head <select class="tfm-width">${options([64, 128, 256])}</select></label>
      <label class="tfm-control">query heads for a key head <select class="tfm-shared">${options([1, 4, 8])}</select></label>
    </div>
    <div class="tfm-controls">
      <button type="button" class="tfm-causal">causal</button><button type="button" class="tfm-one">one query</button><button type="button" class="tfm-reset">reset</button>
    </div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">keys <span class="tfm-value" aria-hidden="true"></span><input type="range" min="4" max="17" step="1"></label></div>
    <svg class="tfm-plot tfm-roof" role="img" viewBox="0 0 ${W} ${H}" font-size="12"></svg>
    <table class="tfm-table tfm-reached"><thead><tr><th scope="col">who</th><th scope="col">operations a byte</th><th scope="col">10¹² operations a second</th><th scope="col">of the peak</th></tr></thead><tbody></tbody></table>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), slider = $("input");
  const x = ops => LEFT + (W - LEFT - RIGHT) * (Math.log2(ops) - X[0]) / (X[1] - X[0]);
  const y = speed => H - BOTTOM - (H - BOTTOM - TOP) * (Math.log10(speed) - Y[0]) / (Y[1] - Y[0]);
  const inside = v => Math.min(2 ** X[1], Math.max(2 ** X[0], v));

  function rows() {                                  // what stands in the picture: computed, then what others and we have measured
    const S = 2 ** model.get("length"), D = model.get("width"), one = model.get("one"), causal = model.get("causal") && !one, shared = model.get("shared");
    const at = (way, T, keys, heads, part) => intensity(way, T, keys, D, heads, part), T = one ? 1 : S, part = causal ? 0.5 : 1;
    const roof = ops => Math.min(peak, ops * bandwidth);
    const made = ["three steps", "tiles"].map((name, way) => { const ops = at(way, T, S, shared, part); return { name, kind: way === PLAIN ? "plain" : "tiles", ops, speed: roof(ops), most: true }; });
    const fit = ([, , width, hidden, heads]) => !one && width === D && hidden === model.get("causal") && heads === shared;
    const met = model.get("points").filter(fit).map(([name, kind, , , heads, speed, keys]) => ({ name, kind, ops: at(kind === "matrix" ? PLAIN : TILES, keys, keys, heads, part), speed }));
    return made.concat(met.sort((a, b) => b.speed - a.speed));
  }

  function picture(all) {
    const D = model.get("width"), turn = peak / bandwidth, alone = peak / (1 + 64 / D), out = [];
    for (let p = 0; p <= 16; p += 4) out.push(`<path class="tfm-grid" d="M${x(2 ** p)} ${TOP}V${H - BOTTOM}"/><text x="${x(2 ** p)}" y="${H - BOTTOM + 16}" text-anchor="middle">${(2 ** p).toLocaleString("en")}</text>`);
    for (let p = 1; p <= 3; p++) out.push(`<path class="tfm-grid" d="M${LEFT} ${y(10 ** p)}H${W - RIGHT}"/><text x="${LEFT - 6}" y="${y(10 ** p) + 4}" text-anchor="end">${(10 ** p).toLocaleString("en")}</text>`);
    out.push(`<text x="2" y="13">10¹² operations a second</text><text x="${(LEFT + W - RIGHT) / 2}" y="${H - 6}" text-anchor="middle">operations for each byte of the slow memory</text>`);
    out.push(`<path class="tfm-path" d="M${x(10 ** Y[0] / bandwidth)} ${y(10 ** Y[0])}L${x(turn)} ${y(peak)}H${W - RIGHT}"/><path class="tfm-guess" d="M${x(alone / bandwidth)} ${y(alone)}H${W - RIGHT}"/>`);
    const marks = { plain: "M-5 -5L5 5M-5 5L5 -5", tiles: "M-6 0H6M0 -6V6", matrix: "M0 -6L6 0L0 6L-6 0Z", published: "M0 -6L6 0L0 6L-6 0Z", measured: "M-5 -5H5V5H-5Z" };
    for (const { kind, ops, speed } of all) out.push(`<path class="tfm-mark tfm-${kind}" transform="translate(${x(inside(ops)).toFixed(1)} ${y(speed).toFixed(1)})" d="${marks[kind]}"/>`);
    const named = all.filter(row => !row.most).sort((a, b) => b.speed - a.speed), places = apart(named.map(row => y(row.speed) + 4), GAP);
    named.forEach((row, i) => out.push(`<path class="tfm-lead" d="M${(x(inside(row.ops)) + 8).toFixed(1)} ${y(row.speed).toFixed(1)}L${W - RIGHT + 6} ${(places[i] - 4).toFixed(1)}"/><text class="tfm-name" x="${W - RIGHT + 10}" y="${places[i].toFixed(1)}">${row.name}</text>`));
    $("svg").innerHTML = out.join("");
  }

  function draw() {
    const S = 2 ** model.get("length"), D = model.get("width"), one = model.get("one"), causal = model.get("causal") && !one, all = rows(), [plain, tiles] = all, turn = peak / bandwidth;
    picture(all);
    $("tbody").innerHTML = all.map(({ name, kind, ops, speed, most }) => `<tr><th scope="row">${name}</th><td>${many(ops)}</td><td>${most ? "≤ " : ""}${many(speed)}</td><td>${most ? "≤ " : ""}${many(100 * speed / peak)} %</td></tr>`).join("");
    $(".tfm-width").value = D; $(".tfm-shared").value = model.get("shared");
    $(".tfm-causal").setAttribute("aria-pressed", causal); $(".tfm-causal").disabled = one; $(".tfm-one").setAttribute("aria-pressed", one);
    slider.value = model.get("length");
    slider.setAttribute("aria-valuetext", `${S} keys`);
    $("label .tfm-value").textContent = S.toLocaleString("en");
    const side = ops => ops < turn ? "on the slope: the memory sets the pace" : "under the roof: the arithmetic sets the pace";
    const words = `Three steps are ${side(plain.ops)}. Tiles are ${side(tiles.ops)}. Where products and exponentials take turns, the dashed line, ${many(peak / (1 + 64 / D))}, is the most.`;
    $("svg").setAttribute("aria-label", `Roofline, ${one ? 1 : S} queries on ${S} keys. ${words}`);
    $(".tfm-readout").textContent = words;
  }

  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  $(".tfm-width").onchange = e => put("width", Number(e.target.value));
  $(".tfm-shared").onchange = e => put("shared", Number(e.target.value));
  $(".tfm-causal").onclick = () => put("causal", !model.get("causal"));
  $(".tfm-one").onclick = () => put("one", !model.get("one"));
  $(".tfm-reset").onclick = () => start.forEach(([key, value]) => put(key, value));
  slider.oninput = () => put("length", Number(slider.value));
  const watched = names.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
