// The best size for a budget, and what a wrong exponent costs. State: names, laws ([E, log A, log B, α, β] of each), samples (for each law, a list of
// others that are possible, or none), chosen (the law), compute (ten times log10 C), exponent (of the best size, in hundredths).
const START = 21, LOW = 18, HIGH = 27, SMALL = 6, LARGE = 15;               // log10 of compute, and of parameters
const X = c => 52 + (c - LOW) / (HIGH - LOW) * 430, Y = n => 262 - (n - SMALL) / (LARGE - SMALL) * 250;

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
  const found = {}, sizes = { best: best(law, flops), taken: best(law, start) * (flops / start) ** exponent };
  for (const [name, N] of Object.entries(sizes)) {
    const D = flops / (6 * N);
    Object.assign(found, { [`${name} N`]: N, [`${name} D`]: D, [`${name} loss`]: loss(law, N, D) });
  }
  return { ...found, wasted: Math.max(0, 1 - enough(law, found["taken loss"]) / flops) };
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
      <label class="tfm-control">training operations <output aria-live="off"></output><input type="range" min="${10 * LOW}" max="${10 * HIGH}" step="1" data-of="compute"></label>
      <label class="tfm-control">exponent of the best size <output aria-live="off"></output><input type="range" min="30" max="80" step="1" data-of="exponent"></label></div>
    <svg class="tfm-plot" role="img" viewBox="0 0 500 308" font-size="13"></svg>
    <table class="tfm-table tfm-bill tfm-frontier"><thead><tr><th scope="col">quantity</th><th scope="col">best by the law</th><th scope="col">by the exponent</th></tr></thead><tbody></tbody></table>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), sliders = [...el.querySelectorAll("[type=range]")];

  function draw() {
    const i = model.get("chosen"), law = model.get("laws")[i], many = model.get("samples")[i] ?? [], c = model.get("compute") / 10, C = 10 ** c, a = model.get("exponent") / 100;
    const p = point(law, C, a), said = `${c % 1 ? amount(10 ** (c - Math.floor(c))) + " · " : ""}10${above(Math.floor(c))}`, log = Math.log10;
    $("select").value = i;
    sliders.forEach(slider => {
      const words = slider.dataset.of === "compute" ? said : a.toFixed(2);
      slider.value = model.get(slider.dataset.of); slider.setAttribute("aria-valuetext", words);
      slider.closest("label").querySelector("output").textContent = words;
    });
    const line = (points, kind) => `<path class="${kind}" d="M${points.map(([x, y]) => `${X(x).toFixed(1)} ${Y(Math.max(SMALL, Math.min(LARGE, y))).toFixed(1)}`).join("L")}"/>`;
    const span = [...Array(HIGH - LOW + 1).keys()].map(k => LOW + k), ticks = span.filter(x => x % 3 === 0), heights = [6, 9, 12, 15];
    const band = many.length ? span.map(x => [x, ...interval(many, 10 ** x).map(log)]) : [];
    const wrong = x => log(best(law, 10 ** START)) + a * (x - START);
    $("svg").innerHTML = ticks.map(x => `<path class="tfm-grid" d="M${X(x)} 12V262"/><text x="${X(x)}" y="280" text-anchor="middle">10${above(x)}</text>`).join("")
      + heights.map(y => `<path class="tfm-grid" d="M52 ${Y(y)}H482"/><text x="46" y="${Y(y) + 4}" text-anchor="end">10${above(y)}</text>`).join("")
      + `<text x="267" y="301" text-anchor="middle">training operations; vertical: parameters</text>`
      + (band.length ? line([...band.map(([x, low]) => [x, low]), ...band.toReversed().map(([x, , high]) => [x, high])], "tfm-hull") : "")
      + line([[LOW, log(best(law, 10 ** LOW))], [HIGH, log(best(law, 10 ** HIGH))]], "tfm-path") + line([[START, wrong(START)], [HIGH, wrong(HIGH)]], "tfm-guess")
      + `<path class="tfm-axis" d="M${X(c)} 12V262"/><circle class="tfm-frontier-best" cx="${X(c)}" cy="${Y(log(p["best N"]))}" r="5"/>`
      + `<rect class="tfm-frontier-taken" x="${X(c) - 4.5}" y="${Y(Math.max(SMALL, Math.min(LARGE, log(p["taken N"])))) - 4.5}" width="9" height="9"/>`;
    $("svg").setAttribute("aria-label", `Best size against training operations, from 10${above(LOW)} to 10${above(HIGH)}, by the law (solid) and by the exponent ${a.toFixed(2)} from 10${above(START)} on (dashed). `
      + `At ${said} operations: ${amount(p["best N"])} and ${amount(p["taken N"])} parameters.`);
    const both = f => [f("best"), f("taken")], rows = [["parameters", both(w => amount(p[`${w} N`]))], ["tokens", both(w => amount(p[`${w} D`]))],
      ["tokens per parameter", both(w => Number((p[`${w} D`] / p[`${w} N`]).toPrecision(2)).toString())], ["loss (nats per token)", both(w => p[`${w} loss`].toFixed(3))]];
    $("tbody").innerHTML = rows.map(([name, cells]) => `<tr><th scope="row">${name}</th>${cells.map(cell => `<td>${cell}</td>`).join("")}</tr>`).join("");
    const [low, high] = many.length ? interval(many, C) : [];
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
