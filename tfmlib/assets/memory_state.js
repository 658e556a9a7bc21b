// A state of two numbers that pairs are written to: keys are directions in the plane, values are numbers. Each pair is the line of states that give its value.
// State: rule ("sum", "decay", "delta"), angle and value of the next pair, pairs (angle, value), memory (the state), said.
const MOST = 6, RULES = { sum: "sum", decay: "decay of one half, then sum", delta: "delta rule" };
const NAMES = [[298, 138, "middle", "2"], [122, 138, "middle", "−2"], [200, 37, "middle", "2"], [198, 213, "middle", "−2"], [420, 138, "end", "first number"], [204, 12, "end", "second number"]]
  .map(([x, y, at, told]) => `<text x="${x}" y="${y}" text-anchor="${at}">${told}</text>`).join("");
const digits = x => { const s = x.toFixed(2).replace(/\.?0+$/, ""); return s === "-0" ? "0" : s.replace("-", "−"); };
const key = angle => [Math.cos(angle * Math.PI / 180), Math.sin(angle * Math.PI / 180)];
const many = n => `${n} pair${n === 1 ? "" : "s"}`;

export function read(memory, angle) { const k = key(angle); return memory[0] * k[0] + memory[1] * k[1]; }

export function write(rule, memory, [angle, value]) {   // the state after one more pair
  const k = key(angle), kept = rule === "decay" ? .5 : 1;
  const added = rule === "delta" ? value - read(memory, angle) : value;
  return [0, 1].map(i => kept * memory[i] + added * k[i]);
}

function render({ model, el }) {
  const names = ["rule", "angle", "value", "pairs", "memory", "said"], start = JSON.stringify(names.map(name => [name, model.get(name)]));
  el.innerHTML = `
    <div class="tfm-controls tfm-wrap" role="group" aria-label="update rule">${Object.entries(RULES).map(([rule, label]) => `<button type="button" data-rule="${rule}">${label}</button>`).join("")}</div>
    <div class="tfm-controls tfm-duo">
      <label class="tfm-control tfm-wide">direction of the next key, degrees <span class="tfm-value" aria-hidden="true" data-of="angle"></span><input type="range" name="angle" min="0" max="180" step="15"></label>
      <label class="tfm-control tfm-wide">its value <span class="tfm-value" aria-hidden="true" data-of="value"></span><input type="range" name="value" min="-2" max="2" step="0.5"></label>
    </div>
    <div class="tfm-controls"><button type="button" class="tfm-write">write the pair</button><button type="button" class="tfm-again">write all pairs again</button><button type="button" class="tfm-reset">reset</button></div>
    <svg class="tfm-plot tfm-plane" role="img" viewBox="0 0 420 240" font-size="12"></svg>
    <table class="tfm-table tfm-recalled"><thead><tr><th scope="col">pair</th><th scope="col">key</th><th scope="col">value</th><th scope="col">read</th></tr></thead><tbody></tbody></table>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), inputs = [...el.querySelectorAll("input")];
  const put = values => { for (const [name, value] of Object.entries(values)) model.set(name, value); model.save_changes(); };
  const X = x => 210 + 44 * x, Y = y => 120 - 44 * y;

  function line([angle, value], n) {                  // all states that give this pair's value
    const [a, b] = key(angle), [x, y] = [value * a, value * b], far = 12;
    const label = [x - 2.2 * b, y + 2.2 * a];
    return `<path class="tfm-guess" d="M${X(x - far * b).toFixed(1)} ${Y(y + far * a).toFixed(1)}L${X(x + far * b).toFixed(1)} ${Y(y - far * a).toFixed(1)}"/><text class="tfm-name" x="${(X(label[0]) + 5).toFixed(1)}" y="${(Y(label[1]) - 4).toFixed(1)}">${n + 1}</text>`;
  }

  function draw() {
    const { rule, pairs, memory } = Object.fromEntries(names.map(name => [name, model.get(name)]));
    const [x, y] = memory, seen = [Math.max(-4.6, Math.min(4.6, x)), Math.max(-2.6, Math.min(2.6, y))];
    el.querySelectorAll("[data-rule]").forEach(button => { button.setAttribute("aria-pressed", button.dataset.rule === rule); });
    inputs.forEach(input => {
      input.value = model.get(input.name);
      input.setAttribute("aria-valuetext", digits(model.get(input.name)));
      el.querySelector(`[data-of="${input.name}"]`).textContent = digits(model.get(input.name));
    });
    const [a, b] = key(model.get("angle"));
    $(".tfm-plane").setAttribute("aria-label", `the state is (${digits(x)}, ${digits(y)}); lines are the states that give the value of each of ${many(pairs.length)}`);
    $(".tfm-plane").innerHTML = `<path class="tfm-grid" d="M0 120H420M210 0V240M122 116v8M298 116v8M206 32h8M206 208h8"/>${NAMES}<path class="tfm-way" d="M210 120L${X(1.5 * a).toFixed(1)} ${Y(1.5 * b).toFixed(1)}"/><text class="tfm-name" x="${(X(1.5 * a) + 4).toFixed(1)}" y="${(Y(1.5 * b) - 4).toFixed(1)}">next key</text>
      ${pairs.map(line).join("")}<path class="tfm-path" d="M210 120L${X(seen[0]).toFixed(1)} ${Y(seen[1]).toFixed(1)}"/><circle class="tfm-here" cx="${X(seen[0]).toFixed(1)}" cy="${Y(seen[1]).toFixed(1)}" r="6"/>`;
    $("tbody").innerHTML = pairs.map((pair, n) => `<tr><th scope="row">${n + 1}</th><td>${pair[0]}°</td><td>${digits(pair[1])}</td><td>${digits(read(memory, pair[0]))}</td></tr>`).join("");
    const right = pairs.filter(pair => Math.abs(read(memory, pair[0]) - pair[1]) < .005).length;
    $(".tfm-write").disabled = pairs.length >= MOST;
    $(".tfm-again").disabled = !pairs.length;
    $(".tfm-readout").textContent = `${model.get("said")} State (${digits(x)}, ${digits(y)}); ${right} of ${many(pairs.length)} read back exactly.`.trim();
  }

  el.querySelectorAll("[data-rule]").forEach(button => { button.onclick = () => {   // the same pairs, written from the beginning by another rule
    const memory = model.get("pairs").reduce((m, pair) => write(button.dataset.rule, m, pair), [0, 0]);
    put({ rule: button.dataset.rule, memory, said: "All pairs were written once, from the beginning." });
  }; });
  inputs.forEach(input => { input.oninput = () => put({ [input.name]: Number(input.value) }); });
  $(".tfm-write").onclick = () => {
    const pair = [model.get("angle"), model.get("value")], before = read(model.get("memory"), pair[0]);
    put({ pairs: [...model.get("pairs"), pair], memory: write(model.get("rule"), model.get("memory"), pair), said: `Before the write, this key read ${digits(before)}.` });
  };
  $(".tfm-again").onclick = () => put({ memory: model.get("pairs").reduce((m, pair) => write(model.get("rule"), m, pair), model.get("memory")), said: "All pairs were written once more." });
  $(".tfm-reset").onclick = () => put(Object.fromEntries(JSON.parse(start)));
  const watched = names.map(name => "change:" + name);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
