// A gradient on its way back through a network of one feature, or of two.
// State: features; eigenvalue and coupling of the matrix U = [[λ, s], [0, λ]], gate (fraction of the old state), squash (tanh?), steps (T).
// With one feature, only the first of the two is looked at, and nothing is coupled to it.
const SPANS = [2, 4, 6, 8, 12];                  // powers of ten that are drawn, up and down
const W = 480, H = 250, LEFT = 52, TOP = 10, RIGHT = 12, BOTTOM = 40;

const raised = n => String(n).replace("-", "⁻").replace(/\d/g, d => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);
function short(x) {                              // 0.031, 2.46, 37.3, 1.6·10⁵
  if (!(x > 0)) return "0";
  if (!isFinite(x)) return "∞";
  let power = Math.floor(Math.log10(x));
  if (power >= -2 && power <= 3) return x.toFixed(Math.max(0, 2 - Math.max(power, 0) + (power < 0 ? -power - 1 : 0)));
  let part = (x / 10 ** power).toFixed(1);
  if (part === "10.0") { part = "1.0"; power += 1; }
  return `${part}·10${raised(power)}`;
}

const times = (A, B) => [A[0] * B[0] + A[1] * B[2], A[0] * B[1] + A[1] * B[3], A[2] * B[0] + A[3] * B[2], A[2] * B[1] + A[3] * B[3]];
function stretch([a, b, c, d]) {                 // the largest singular value of [[a, b], [c, d]]
  const half = Math.hypot(a + d, c - b) / 2, other = Math.hypot(a - d, b + c) / 2;
  return half + other;
}

function journey({ features, eigenvalue, coupling, gate, squash, steps }) {  // the norm of J_T J_{T−1} … at each distance from the last step
  const one = features === 1, U = [eigenvalue, one ? 0 : coupling, 0, eigenvalue], jacobians = [];
  const size = one ? P => Math.abs(P[0]) : stretch;
  let h = [0, 0];
  for (let t = 0; t < steps; t++) {
    const z = [U[0] * h[0] + U[1] * h[1] + 0.5 * Math.sin(0.3 * t), U[2] * h[0] + U[3] * h[1] + 0.5 * Math.cos(0.5 * t)];
    const made = squash ? z.map(Math.tanh) : z, slope = squash ? made.map(y => 1 - y * y) : [1, 1];
    h = h.map((old, i) => gate * old + (1 - gate) * made[i]);
    jacobians.push(U.map((u, i) => (i % 3 === 0 ? gate : 0) + (1 - gate) * slope[i >> 1] * u));
  }
  const norms = [1];
  let P = [1, 0, 0, 1];
  for (const J of jacobians.reverse()) { P = times(P, J); norms.push(size(P)); }
  return { norms, most: Math.max(...jacobians.map(size)) };
}

function render({ model, el }) {
  const keys = ["features", "eigenvalue", "coupling", "gate", "squash", "steps"], one = model.get("features") === 1;
  const alone = one ? "λ" : "the eigenvalue";
  const state = () => Object.fromEntries(keys.map(key => [key, model.get(key)]));
  const start = JSON.stringify(state());
  const slider = (key, name, low, high, by) => `<label class="tfm-control">${name} <span class="tfm-value" aria-hidden="true"></span>
    <input type="range" data-key="${key}" min="${low}" max="${high}" step="${by}"></label>`;
  el.innerHTML = `
    <div class="tfm-journey">${slider("eigenvalue", one ? "weight λ" : "eigenvalue λ", 0, 1.5, 0.01)}${one ? "" : slider("coupling", "coupling", 0, 10, 0.1)}
      ${slider("gate", "gate f", 0, 1, 0.01)}${slider("steps", "steps T", 5, 500, 5)}</div>
    <div class="tfm-controls"><span class="tfm-buttons" role="group" aria-label="activation"><button type="button">linear</button><button type="button">tanh</button></span>
      <button type="button" class="tfm-reset">reset</button></div>
    <svg class="tfm-plot" role="img" viewBox="0 0 ${W} ${H}" font-size="12"></svg>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), inputs = [...el.querySelectorAll("input")], buttons = [...el.querySelectorAll(".tfm-buttons button")];

  function plot(norms, factor, steps) {
    const dashed = norms.map((_, n) => factor ** n), powers = [...norms, ...dashed].map(v => v > 0 ? Math.abs(Math.log10(v)) : Infinity);
    const span = SPANS.find(s => powers.every(p => p <= s)) ?? SPANS.at(-1);
    const x = n => LEFT + (W - LEFT - RIGHT) * n / steps;
    const y = power => TOP + (H - TOP - BOTTOM) * (span - Math.min(span, Math.max(-span, power))) / (2 * span);
    const line = values => values.map((v, n) => `${n ? "L" : "M"}${x(n).toFixed(1)} ${y(v > 0 ? Math.log10(v) : -span).toFixed(1)}`).join("");
    const ticks = [-1, -0.5, 0, 0.5, 1].map(part => part * span).map(p => `<path d="M${LEFT} ${y(p)}H${W - RIGHT}" class="${p ? "tfm-grid" : "tfm-axis"}"/>
      <text x="${LEFT - 6}" y="${y(p) + 5}" text-anchor="end">${p ? `10${raised(p)}` : "1"}</text>`);
    const across = [0, 1, 2, 3, 4].map(i => steps * i / 4).filter(n => Number.isInteger(n)).map(n => `<text x="${x(n)}" y="${H - 22}" text-anchor="middle">${n}</text>`);
    $("svg").innerHTML = `${ticks.join("")}${across.join("")}<text x="${(LEFT + W - RIGHT) / 2}" y="${H - 5}" text-anchor="middle">distance n</text>
      <path d="${line(dashed)}" class="tfm-guess"/><path d="${line(norms)}" class="tfm-path"/>`;
  }

  function draw() {
    const now = state(), { norms, most } = journey(now), { steps, gate, eigenvalue } = now, factor = gate + (1 - gate) * eigenvalue;
    const shown = { eigenvalue: eigenvalue.toFixed(2), coupling: now.coupling.toFixed(1), gate: gate.toFixed(2), steps: String(steps) };
    inputs.forEach(input => {
      input.value = now[input.dataset.key];
      input.previousElementSibling.textContent = shown[input.dataset.key];
      input.setAttribute("aria-valuetext", shown[input.dataset.key]);
    });
    buttons.forEach((b, i) => b.setAttribute("aria-pressed", now.squash === Boolean(i)));
    plot(norms, factor, steps);
    const peak = norms.indexOf(Math.max(...norms)), lost = norms.findLastIndex(v => v >= 0.01) + 1;
    const end = short(norms[steps]);
    $("svg").setAttribute("aria-label", `growth of the gradient over ${steps} steps: at its largest ${short(norms[peak])} at distance ${peak}, at the end ${end}; ${alone} alone would give ${short(factor ** steps)}`);
    $(".tfm-readout").textContent = `After ${steps} steps ${end}; ${alone} alone predicts ${short(factor ** steps)}. Largest ${short(norms[peak])}, at distance ${peak}. `
      + (lost > steps ? "At the end still above 0.01. " : `Below 0.01 from distance ${lost} on. `) + (one ? `The largest factor of a single step is ${short(most)}.` : `A single step stretches by up to ${short(most)}.`);
  }

  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  inputs.forEach(input => { input.oninput = () => put(input.dataset.key, Number(input.value)); });
  buttons.forEach((b, i) => { b.onclick = () => put("squash", Boolean(i)); });
  $(".tfm-reset").onclick = () => Object.entries(JSON.parse(start)).forEach(([key, value]) => put(key, value));
  const watched = keys.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
