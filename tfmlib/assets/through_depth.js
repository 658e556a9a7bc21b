// A signal on its way through a stack of blocks. State: depths (after which blocks), runs ("norm/place/residual/start" → three lists:
// log₁₀ of the root mean square, log₁₀ of the gradient, likeness of the tokens), norms and starts to choose from; norm, place, residual, start, block.
const W = 480, LEFT = 58, RIGHT = 12, TALL = 92, STEP = 128, TOP = 26;
const PANELS = [
  { name: "root mean square of the stream", low: -4, high: 8, by: 4, log: true },
  { name: "length of the gradient", low: -12, high: 6, by: 6, log: true },
  { name: "likeness of the tokens (mean cosine)", low: 0, high: 1, by: 0.5, log: false },
];
const raised = n => String(n).replace("-", "⁻").replace(/\d/g, d => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);
function ten(power) {                            // 10 to this power, short: 0.031, 2.5, 37, 1.6·10⁵
  if (power >= -2 && power < 4) { const x = 10 ** power; return x.toFixed(x < 0.1 ? 3 : x < 1 ? 2 : x < 10 ? 1 : 0); }
  const whole = Math.floor(power);
  return `${(10 ** (power - whole)).toFixed(1)}·10${raised(whole)}`;
}

function render({ model, el }) {
  const keys = ["norm", "place", "residual", "start", "block"], runs = model.get("runs"), depths = model.get("depths"), starts = model.get("starts");
  const start = JSON.stringify(keys.map(key => [key, model.get(key)]));
  const group = (key, name, items) => `<span class="tfm-buttons tfm-wrap" role="group" aria-label="${name}" data-key="${key}">${items.map(([value, text]) => `<button type="button" data-value='${JSON.stringify(value)}'>${text}</button>`).join("")}</span>`;
  el.innerHTML = `
    <div class="tfm-controls">${group("norm", "norm", model.get("norms").map(n => [n, n === "none" ? "no norm" : n]))}${group("place", "place of the norm", [["pre", "before the layer"], ["post", "behind the addition"]])}</div>
    <div class="tfm-controls">${group("residual", "residual", [[true, "residual"], [false, "no residual"]])}${group("start", "size of the input", starts.map(s => [s, `input × ${s}`]))}<button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">after block <span class="tfm-value" aria-hidden="true"></span><input type="range" min="0" max="${depths.length - 1}" step="1"></label></div>
    <svg class="tfm-plot" role="img" viewBox="0 0 ${W} ${TOP + 3 * STEP}" font-size="12"></svg>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), slider = $("input"), last = depths.at(-1);
  const put = (name, value) => { model.set(name, value); model.save_changes(); };
  const run = () => { const norm = model.get("norm"); return `${norm}/${norm === "none" ? "pre" : model.get("place")}/${model.get("residual")}/${model.get("start")}`; };
  let shown = run(), before = null;                // the choice before this one stays, dashed

  const x = n => LEFT + (W - LEFT - RIGHT) * n / last;
  function panel({ name, low, high, by, log }, p, i) {
    const top = TOP + STEP * p, y = v => top + TALL * (high - Math.min(high, Math.max(low, v))) / (high - low);
    const line = key => runs[key][p].map((v, n) => `${n ? "L" : "M"}${x(depths[n]).toFixed(1)} ${y(v).toFixed(1)}`).join("");
    const ticks = [];
    for (let v = low; v <= high + 1e-9; v += by) ticks.push(`<path d="M${LEFT} ${y(v)}H${W - RIGHT}" class="${v ? "tfm-grid" : "tfm-axis"}"/><text x="${LEFT - 6}" y="${y(v) + 4}" text-anchor="end">${log ? (v ? `10${raised(v)}` : "1") : v}</text>`);
    const here = runs[shown][p][i];
    return `<text x="${LEFT}" y="${top - 8}" class="tfm-name">${name}</text>${ticks.join("")}` + (before ? `<path d="${line(before)}" class="tfm-guess"/>` : "")
      + `<path d="${line(shown)}" class="tfm-path"/><circle cx="${x(depths[i])}" cy="${y(here)}" r="4.5" class="tfm-here"/>`;
  }

  function draw() {
    if (run() !== shown) { before = shown; shown = run(); }
    const i = model.get("block"), [size, gradient, alike] = runs[shown].map(values => values[i]), none = model.get("norm") === "none";
    el.querySelectorAll("[data-key] button").forEach(b => {
      const key = b.parentElement.dataset.key;
      if (key === "place") b.disabled = none;
      b.setAttribute("aria-pressed", !b.disabled && JSON.stringify(model.get(key)) === b.dataset.value);
    });
    slider.value = i;
    $("label .tfm-value").textContent = depths[i];
    slider.setAttribute("aria-valuetext", `block ${depths[i]}`);
    const words = `After block ${depths[i]} of ${last}: root mean square ${ten(size)}, gradient ${ten(gradient)}, likeness ${alike.toFixed(3)}.`;
    $("svg").innerHTML = PANELS.map((panel_, p) => panel(panel_, p, i)).join("")
      + [0, 0.25, 0.5, 0.75, 1].map(part => `<text x="${x(part * last)}" y="${TOP + 3 * STEP - 20}" text-anchor="middle">${part * last}</text>`).join("") + `<text x="${(LEFT + W - RIGHT) / 2}" y="${TOP + 3 * STEP - 4}" text-anchor="middle">block</text>`;
    $("svg").setAttribute("aria-label", words);
    $(".tfm-readout").textContent = words + (before ? " Dashed: the choice before." : "");
  }

  el.querySelectorAll("[data-key] button").forEach(b => { b.onclick = () => put(b.parentElement.dataset.key, JSON.parse(b.dataset.value)); });
  slider.oninput = () => put("block", Number(slider.value));
  $(".tfm-reset").onclick = () => { JSON.parse(start).forEach(([key, value]) => put(key, value)); before = null; draw(); };
  const watched = keys.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
