// Pairs of features that turn with the positions of a query and a key. State: query, key (positions, 0 … 64),
// power (the base is ten to this power), factor (by which every pair is slowed down), pairs (how many there are).
const MOST = 64, X = d => 34 + 370 * d / MOST;

const digits = (x, n) => x.toFixed(n).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");
const grouped = x => Math.round(x).toLocaleString("en-GB");

function render({ model, el }) {
  const pairs = model.get("pairs"), start = JSON.stringify(["query", "key", "power", "factor"].map(name => [name, model.get(name)]));
  const Y = s => 84 - 70 * s / pairs;
  const range = (name, label, min, max, step) => `<label class="tfm-control tfm-wide">${label} <span class="tfm-value" aria-hidden="true" data-of="${name}"></span><input type="range" name="${name}" min="${min}" max="${max}" step="${step}"></label>`;
  el.innerHTML = `
    <div class="tfm-controls tfm-duo">${range("query", "position of the query", 0, MOST, 1)}${range("key", "position of the key", 0, MOST, 1)}</div>
    <div class="tfm-controls tfm-duo">${range("power", "base", 2, 6, .25)}${range("factor", "all pairs slowed down", 1, 8, 1)}</div>
    <div class="tfm-controls"><button type="button" class="tfm-lock" aria-pressed="false">move both positions together</button><button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-dials">${Array.from({ length: pairs }, () => `<svg class="tfm-dial" role="img" viewBox="0 0 64 82" font-size="11"></svg>`).join("")}</div>
    <svg class="tfm-plot tfm-score" role="img" viewBox="0 0 420 184" font-size="12"></svg>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), inputs = [...el.querySelectorAll("input")], dials = [...el.querySelectorAll(".tfm-dial")], lock = $(".tfm-lock");
  const put = (name, value) => { model.set(name, value); model.save_changes(); };
  let together = false;

  const speeds = () => Array.from({ length: pairs }, (_, i) => 10 ** (-model.get("power") * i / pairs) / model.get("factor"));
  const score = (w, d) => w.reduce((sum, speed) => sum + Math.cos(d * speed), 0);
  const wave = speed => { const turn = 2 * Math.PI / speed; return turn < 100 ? digits(turn, 1) : grouped(turn); };

  function dial(svg, i, speed, m, n) {             // two hands on a circle, the angle between them filled, and what the pair adds
    const at = angle => `${(32 + 26 * Math.cos(angle)).toFixed(1)} ${(30 - 26 * Math.sin(angle)).toFixed(1)}`;
    const q = m * speed, k = n * speed, between = Math.atan2(Math.sin(q - k), Math.cos(q - k)), share = Math.cos(q - k);
    const sector = Math.abs(between) < .01 ? "" : `<path class="tfm-sector" d="M32 30L${at(k)}A26 26 0 0 ${between > 0 ? 0 : 1} ${at(q)}Z"/>`;
    svg.setAttribute("aria-label", `pair ${i}, one turn in ${wave(speed)} positions, adds ${digits(share, 2)}`);
    svg.innerHTML = `<circle class="tfm-axis" cx="32" cy="30" r="27"/>${sector}<path class="tfm-hand-k" d="M32 30L${at(k)}"/><path class="tfm-hand-q" d="M32 30L${at(q)}"/>
      <text x="32" y="69">${digits(share, 2)}</text><text class="tfm-faint" x="32" y="81">${wave(speed)}</text>`;
  }

  function curve(w, d) {
    let path = "";
    for (let x = 0; x <= MOST; x += .25) path += `${x ? "L" : "M"}${X(x).toFixed(1)} ${Y(score(w, x)).toFixed(1)}`;
    const ticks = [0, 16, 32, 48, 64].map(x => `<path class="tfm-grid" d="M${X(x)} 14V154"/><text x="${X(x)}" y="168" text-anchor="middle">${x}</text>`).join("");
    const levels = [-pairs, 0, pairs].map(s => `<path class="tfm-grid" d="M${X(0)} ${Y(s)}H${X(MOST)}"/><text x="29" y="${Y(s) + 4}" text-anchor="end">${digits(s, 0)}</text>`).join("");
    $(".tfm-score").setAttribute("aria-label", `score against distance; at the present distance ${d} it is ${digits(score(w, d), 2)}`);
    $(".tfm-score").innerHTML = `${ticks}${levels}<path class="tfm-path" d="${path}"/><path class="tfm-axis" stroke-dasharray="3 3" d="M${X(d)} 14V154"/>
      <circle class="tfm-here" cx="${X(d)}" cy="${Y(score(w, d))}" r="6"/><text x="${X(MOST / 2)}" y="182" text-anchor="middle">distance, positions</text>`;
  }

  function draw() {
    const w = speeds(), m = model.get("query"), n = model.get("key"), d = Math.abs(m - n);
    const shown = { query: String(m), key: String(n), power: grouped(10 ** model.get("power")), factor: `${model.get("factor")} times` };
    inputs.forEach(input => {
      input.value = model.get(input.name);
      input.setAttribute("aria-valuetext", shown[input.name]);
      el.querySelector(`[data-of="${input.name}"]`).textContent = shown[input.name];
    });
    lock.setAttribute("aria-pressed", together);
    dials.forEach((svg, i) => dial(svg, i, w[i], m, n));
    curve(w, d);
    $(".tfm-readout").textContent = `distance ${d} · score ${digits(score(w, d), 2)} of ${pairs} · the slowest pair needs ${wave(w[pairs - 1])} positions for a turn`;
  }

  inputs.forEach(input => { input.oninput = () => {
    const value = Number(input.value), other = { query: "key", key: "query" }[input.name];
    if (together && other) {                         // the distance is kept: the pair stops where one of them would leave the line
      const apart = model.get(other) - model.get(input.name), held = Math.min(Math.max(value, -apart, 0), MOST - Math.max(apart, 0));
      put(other, held + apart);
      put(input.name, held);
      draw();
    } else put(input.name, value);
  }; });
  lock.onclick = () => { together = !together; draw(); };
  $(".tfm-reset").onclick = () => { together = false; JSON.parse(start).forEach(([name, value]) => put(name, value)); draw(); };
  const watched = ["query", "key", "power", "factor"].map(name => "change:" + name);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
