// One row of attention, from scores that you move to the weighted sum of the values.
// State: tokens, values (a number each), products (queries × keys), mask (true where a query may attend), row (the query),
// width (features of q and k), octaves (the divisor is √width · 2^octaves), pad (how many tokens at the end are padding).
const REACH = 12;                                // products are moved between −12 and 12

const digits = (x, n) => x.toFixed(n).replace("-", "−");
const raised = n => String(n).replace("-", "⁻").replace(/\d/g, d => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);
function short(x) {                              // 0.031, 2.46, 37.3, 1.6·10⁵
  if (x === 0) return "0";
  const power = Math.floor(Math.log10(x));
  if (power < -2 || power > 3) return `${(x / 10 ** power).toFixed(1)}·10${raised(power)}`;
  return x.toFixed(Math.max(0, 2 - Math.max(power, 0)));
}

function attend(products, seen, divisor) {       // exponentials and weights of one row; a row whose keys are all masked gets zeros
  const exps = products.map((p, j) => seen[j] ? Math.exp(p / divisor) : 0), sum = exps.reduce((a, b) => a + b, 0);
  return { exps, weights: exps.map(e => sum ? e / sum : 0) };
}

function render({ model, el }) {
  const tokens = model.get("tokens"), values = model.get("values"), n = tokens.length, root = `√${model.get("width")}`;
  const start = JSON.stringify(["products", "mask", "row", "octaves"].map(key => [key, model.get(key)]));
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt()};`);
  const grid = f => tokens.map((_, i) => tokens.map((_, j) => f(i, j)));
  const presets = { "no mask": grid(() => true), causal: grid((i, j) => j <= i), padding: grid((i, j) => j < n - model.get("pad")) };

  el.innerHTML = `
    <div class="tfm-controls">
      <label class="tfm-control">query <select>${tokens.map((t, i) => `<option value="${i}">${safe(t)}</option>`).join("")}</select></label>
      <span class="tfm-buttons" role="group" aria-label="mask of all queries">${Object.keys(presets).map(name => `<button type="button">${name}</button>`).join("")}</span>
      <button type="button" class="tfm-reset">reset</button>
    </div>
    <table class="tfm-table"><thead><tr><th scope="col">key</th><th scope="col">product q·k</th><th scope="col">score</th><th scope="col">exp</th><th scope="col">weight</th></tr></thead>
      <tbody>${tokens.map(t => `<tr><th scope="row"><button type="button" class="tfm-toggle">${safe(t)}</button></th>
        <td><span class="tfm-slide"><input class="tfm-signed" type="range" min="${-REACH}" max="${REACH}" step="0.1"><span class="tfm-digits"></span></span></td>
        <td><span class="tfm-digits"></span></td><td><span class="tfm-digits"></span><span class="tfm-bar"></span></td><td><span class="tfm-digits"></span><span class="tfm-bar"></span></td></tr>`).join("")}</tbody></table>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">products are divided by <span class="tfm-value" aria-hidden="true"></span>
      <input type="range" min="-2" max="2" step="0.25"><span class="tfm-ticks" aria-hidden="true"><span>¼ ${root}</span><span>${root}</span><span>4 ${root}</span></span></label></div>
    <svg class="tfm-numberline" role="img" viewBox="0 0 360 96" font-size="11.5"></svg>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), all = q => [...el.querySelectorAll(q)];
  const select = $("select"), scale = $(".tfm-wide input"), rows = all("tbody tr"), buttons = all(".tfm-buttons button");

  const low = Math.min(0, ...values), high = Math.max(0, ...values), x = v => 36 + 288 * (v - low) / (high - low || 1);
  const order = values.map((v, j) => j).sort((a, b) => values[a] - values[b]);

  function line(weights, seen, output) {             // the values on a number line, their hull, and the output
    const visible = values.filter((_, j) => seen[j]), some = visible.length > 0;
    const dots = order.map((j, k) => `<circle cx="${x(values[j])}" cy="48" r="${3 + 8 * Math.sqrt(weights[j])}" class="${seen[j] ? "tfm-seen" : "tfm-unseen"}"/>
      <text x="${x(values[j])}" y="${k % 2 ? 12 : 26}" class="${seen[j] ? "" : "tfm-out"}">${safe(tokens[j])} ${digits(values[j], 0)}</text>`);
    const hull = some ? `<rect class="tfm-hull" x="${x(Math.min(...visible)) - 5}" y="43" width="${x(Math.max(...visible)) - x(Math.min(...visible)) + 10}" height="10" rx="5"/>` : "";
    $("svg").setAttribute("aria-label", `values on a line: ${order.map(j => `${tokens[j]} ${digits(values[j], 0)}`).join(", ")}`);
    $("svg").innerHTML = `<path d="M14 48H346M${x(0)} 42V54" class="tfm-axis"/>${hull}${dots.join("")}
      <g class="tfm-mix" style="transform:translateX(${x(output)}px)"><path d="M0 60l7 12h-14z"/><text y="88">output ${digits(output, 1)}</text></g>`;
  }

  function draw() {
    const i = model.get("row"), seen = model.get("mask")[i], products = model.get("products")[i];
    const octaves = model.get("octaves"), times = 2 ** octaves, divisor = Math.sqrt(model.get("width")) * times;
    const { exps, weights } = attend(products, seen, divisor), most = Math.max(...exps) || 1;
    rows.forEach((row, j) => {
      const [toggle, slider] = [row.querySelector("button"), row.querySelector("input")], numbers = row.querySelectorAll(".tfm-digits"), bars = row.querySelectorAll(".tfm-bar");
      row.classList.toggle("tfm-masked", !seen[j]);
      toggle.setAttribute("aria-pressed", seen[j]);
      toggle.setAttribute("aria-label", `${tokens[j]}: not masked`);
      slider.value = products[j];
      slider.style.setProperty("--at", (products[j] + REACH) / (2 * REACH));
      slider.style.setProperty("--fill", `var(--tfm-div-${products[j] < 0 ? "neg" : "pos"})`);
      slider.setAttribute("aria-label", `product of query ${tokens[i]} and key ${tokens[j]}`);
      slider.setAttribute("aria-valuetext", `${digits(products[j], 1)}, ${seen[j] ? `weight ${weights[j].toFixed(3)}` : "masked"}`);
      [digits(products[j], 1), seen[j] ? digits(products[j] / divisor, 2) : "−∞", short(exps[j]), weights[j].toFixed(3)].forEach((text, k) => { numbers[k].textContent = text; });
      [exps[j] / most, weights[j]].forEach((part, k) => bars[k].style.setProperty("--part", part));
    });
    select.value = i;
    scale.value = octaves;
    const named = `${digits(divisor, 2)} = ${octaves ? `${Number(times.toFixed(2))} · ` : ""}${root}`;
    scale.setAttribute("aria-valuetext", named);
    $(".tfm-value").textContent = named;
    buttons.forEach(b => b.setAttribute("aria-pressed", JSON.stringify(presets[b.textContent][i]) === JSON.stringify(seen)));
    const output = weights.reduce((sum, s, j) => sum + s * values[j], 0), entropy = -weights.reduce((sum, s) => sum + (s && s * Math.log2(s)), 0) + 0;
    line(weights, seen, output);
    const count = seen.filter(Boolean).length;
    $(".tfm-readout").textContent = count
      ? `output ${digits(output, 1)} · entropy ${Math.max(entropy, 0).toFixed(2)} of at most ${Math.log2(count).toFixed(2)} bits, as spread out as equal weights on ${(2 ** entropy).toFixed(1)} of ${count} tokens`
      : "Every key is masked: by convention, the weights and the output are 0; the formula alone would divide 0 by 0.";
  }

  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  const with1 = (key, j, value) => put(key, model.get(key).map((r, i) => i === model.get("row") ? r.map((old, k) => k === j ? value(old) : old) : r));
  select.onchange = () => put("row", Number(select.value));
  scale.oninput = () => put("octaves", Number(scale.value));
  buttons.forEach(b => { b.onclick = () => put("mask", presets[b.textContent]); });
  $(".tfm-reset").onclick = () => JSON.parse(start).forEach(([key, value]) => put(key, value));
  rows.forEach((row, j) => {
    row.querySelector("input").oninput = e => with1("products", j, () => Number(e.target.value));
    row.querySelector("button").onclick = () => with1("mask", j, old => !old);
  });
  const watched = ["products", "mask", "row", "octaves"].map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
