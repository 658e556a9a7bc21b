// The best size for a budget, and what a wrong exponent costs. State: names, laws ([E, log A, log B, α, β] of each), samples (for each law, a list of
// bootstrap laws, or none), chosen (the law), compute (ten times log10 C), exponent (of the best size, in hundredths).
const START = 21, LOW = 18, HIGH = 27, SMALL = 7, LARGE = 14, OFF = 2;      // log10 of compute, of parameters, and of a size relative to the best
const held = (x, low, high) => Math.max(low, Math.min(high, x));
const X = c => 44 + (c - LOW) / (HIGH - LOW) * 250, Y = n => 200 - (held(n, SMALL, LARGE) - SMALL) / (LARGE - SMALL) * 188;
const XR = r => 44 + (held(r, -OFF, OFF) + OFF) / (2 * OFF) * 250, YR = w => 200 - w * 188;

function best(law, flops) {                          // tfmlib.scaling_laws.compute_optimal, the size
  const [, a, b, alpha, beta] = law;
  return Math.exp((Math.log(alpha / beta) + a - b + beta * Math.log(flops / 6)) / (alpha + beta));
}

function loss([E, a, b, alpha, beta], N, D) { return E + Math.exp(a - alpha * Math.log(N)) + Math.exp(b - beta * Math.log(D)); }

function enough(law, wanted) {                       // tfmlib.scaling_laws.flops_for
  const [E, , , alpha, beta] = law, N = best(law, 6);
  return 6 * ((loss(law, N, 1 / N) - E) / (wanted - E)) ** ((alpha + beta) / (alpha * beta));
}

export function point(law, flops, exponent, start = 10 ** START) {          // the same numbers, under the same names, as tfmlib.scaling_laws.frontier_point
  const found = {}, sizes = { best: best(law, flops), chosen: best(law, start) * (flops / start) ** exponent };
  for (const [name, N] of Object.entries(sizes)) {
    const D = flops / (6 * N);
    Object.assign(found, { [`${name} N`]: N, [`${name} D`]: D, [`${name} loss`]: loss(law, N, D) });
  }
  return { ...found, wasted: Math.max(0, 1 - enough(law, found["chosen loss"]) / flops) };
}

export function wasted(law, flops, times) {          // by a size that is so many times the best one
  const N = times * best(law, flops);
  return Math.max(0, 1 - enough(law, loss(law, N, flops / (6 * N))) / flops);
}

export function interval(laws, flops) {              // between which nine tenths of the best sizes lie
  const sizes = laws.map(law => best(law, flops)).sort((a, b) => a - b), at = q => sizes[Math.round(q * (sizes.length - 1))];
  return [at(0.05), at(0.95)];
}

export function amount(x) {
  const names = ["", " thousand", " million", " billion", " trillion", " · 10¹⁵", " · 10¹⁸"], at = Math.max(0, Math.min(Math.floor(Math.log10(Number(x.toPrecision(3))) / 3), names.length - 1));
  return Number((x / 1000 ** at).toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 }) + names[at];
}

const above = n => [...String(n)].map(d => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d] ?? d).join("");

function render({ model, el }) {
  const names = model.get("names"), keys = ["chosen", "compute", "exponent"], start = keys.map(key => [key, model.get(key)]);
  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  el.innerHTML = `
    <div class="tfm-controls"><label class="tfm-control">law <select>${names.map((n, i) => `<option value="${i}">${n}</option>`).join("")}</select></label>
      <button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-duo">
      <label class="tfm-control">training operations <span class="tfm-value" aria-hidden="true"></span><input type="range" min="${10 * LOW}" max="${10 * HIGH}" step="1" data-of="compute"></label>
      <label class="tfm-control">exponent of the best size <span class="tfm-value" aria-hidden="true"></span><input type="range" min="30" max="80" step="1" data-of="exponent"></label></div>
    <div class="tfm-pair"><svg class="tfm-plot" role="img" viewBox="0 0 310 240" font-size="12"></svg><svg class="tfm-plot" role="img" viewBox="0 0 310 240" font-size="12"></svg></div>
    <table class="tfm-table tfm-bill tfm-frontier"><thead><tr><th scope="col">quantity</th><th scope="col">best by the law</th><th scope="col">by the exponent</th></tr></thead><tbody></tbody></table>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), sliders = [...el.querySelectorAll("[type=range]")], svgs = [...el.querySelectorAll("svg")];

  function draw() {
    const i = model.get("chosen"), law = model.get("laws")[i], many = model.get("samples")[i] ?? [], c = model.get("compute") / 10, C = 10 ** c, a = model.get("exponent") / 100;
    const p = point(law, C, a), said = `${c % 1 ? amount(10 ** (c - Math.floor(c))) + " · " : ""}10${above(Math.floor(c))}`, log = Math.log10;
    $("select").value = i;
    sliders.forEach(slider => {
      const words = slider.dataset.of === "compute" ? said : a.toFixed(2);
      slider.value = model.get(slider.dataset.of); slider.setAttribute("aria-valuetext", words);
      slider.closest("label").querySelector(".tfm-value").textContent = words;
    });
    const line = (points, kind, x, y) => `<path class="${kind}" d="M${points.map(([u, v]) => `${x(u).toFixed(1)} ${y(v).toFixed(1)}`).join("L")}"/>`;
    const frame = (xs, ys, x, y, name) => xs.map(([u, label]) => `<path class="tfm-grid" d="M${x(u)} 12V200"/><text x="${x(u)}" y="217" text-anchor="middle">${label}</text>`).join("")
      + ys.map(([v, label]) => `<path class="tfm-grid" d="M44 ${y(v)}H294"/><text x="39" y="${y(v) + 4}" text-anchor="end">${label}</text>`).join("") + `<text x="169" y="236" text-anchor="middle">${name}</text>`;
    const marks = (x1, y1, x2, y2) => `<circle class="tfm-frontier-best" cx="${x1}" cy="${y1}" r="5"/><rect class="tfm-frontier-taken" x="${x2 - 4.5}" y="${y2 - 4.5}" width="9" height="9"/>`;
    const span = [...Array(HIGH - LOW + 1).keys()].map(k => LOW + k), wrong = x => log(best(law, 10 ** START)) + a * (x - START), size = x => [x, log(best(law, 10 ** x))];
    const band = many.length ? span.map(x => [x, ...interval(many, 10 ** x).map(log)]) : [], [low, high] = many.length ? interval(many, C) : [];
    const times = [...Array(81).keys()].map(k => (k - 40) / 20), off = log(p["chosen N"] / p["best N"]), [left, right] = svgs;
    left.innerHTML = frame([18, 21, 24, 27].map(x => [x, `10${above(x)}`]), [8, 10, 12, 14].map(y => [y, `10${above(y)}`]), X, Y, "training operations; vertical: parameters")
      + (band.length ? line([...band.map(([x, l]) => [x, l]), ...[...band].reverse().map(([x, , h]) => [x, h])], "tfm-hull", X, Y) : "")
      + line([size(LOW), size(HIGH)], "tfm-path", X, Y) + line([[START, wrong(START)], [HIGH, wrong(HIGH)]], "tfm-guess", X, Y) + `<path class="tfm-axis" d="M${X(c)} 12V200"/>`
      + marks(X(c), Y(log(p["best N"])), X(c), Y(log(p["chosen N"])));
    right.innerHTML = frame([[-2, "0.01"], [-1, "0.1"], [0, "1"], [1, "10"], [2, "100"]], [0, .25, .5, .75, 1].map(w => [w, `${100 * w} %`]), XR, YR, "size relative to the best; vertical: wasted")
      + (many.length ? `<rect class="tfm-hull" x="${XR(log(low / p["best N"]))}" y="12" width="${XR(log(high / p["best N"])) - XR(log(low / p["best N"]))}" height="188"/>` : "")
      + line(times.map(r => [r, wasted(law, C, 10 ** r)]), "tfm-path", XR, YR) + marks(XR(0), YR(0), XR(off), YR(p.wasted));
    left.setAttribute("aria-label", `Best size against training operations, from 10${above(LOW)} to 10${above(HIGH)}, by the law (solid) and by the exponent ${a.toFixed(2)} from 10${above(START)} on (dashed). `
      + `At ${said} operations: ${amount(p["best N"])} and ${amount(p["chosen N"])} parameters.`);
    right.setAttribute("aria-label", `The fraction of the operations that a wrong size wastes: nothing at the best size, ${(100 * wasted(law, C, 2)).toFixed(0)} % at twice the best, ${(100 * p.wasted).toFixed(0)} % at the size of the chosen exponent.`);
    const both = f => [f("best"), f("chosen")], rows = [["parameters", both(w => amount(p[`${w} N`]))], ["tokens", both(w => amount(p[`${w} D`]))],
      ["tokens per parameter", both(w => Number((p[`${w} D`] / p[`${w} N`]).toPrecision(2)).toString())], ["loss (nats per token)", both(w => p[`${w} loss`].toFixed(3))]];
    $("tbody").innerHTML = rows.map(([name, cells]) => `<tr><th scope="row">${name}</th>${cells.map(cell => `<td>${cell}</td>`).join("")}</tr>`).join("");
    $(".tfm-readout").textContent = `The exponent wastes ${(100 * p.wasted).toFixed(p.wasted < 0.1 ? 1 : 0)} % of the operations: the best model reaches the same loss with the rest. `
      + (many.length ? `Nine tenths of the bootstrap laws recommend ${amount(low)} to ${amount(high)} parameters.` : "This law has no published joint uncertainty.");
  }

  $("select").onchange = e => put("chosen", Number(e.target.value));
  sliders.forEach(slider => { slider.oninput = () => put(slider.dataset.of, Number(slider.value)); });
  $(".tfm-reset").onclick = () => start.forEach(([key, value]) => put(key, value));
  const watched = keys.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
