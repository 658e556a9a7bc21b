// A soft dictionary: orthogonal keys, a query that turns from one to the next, a sharpness from the plain mean to a lookup.
// State: values (a number a key), place (1 is key 1, 2 key 2; between them the query turns from one to the other), sharpness.
const digits = (x, n) => (Math.abs(x) < 0.5 / 10 ** n ? 0 : x).toFixed(n).replace("-", "−");
const SHARPEST = 20;

function row(values, place, sharpness) {         // scores, weights, answer, and the answer's slope as the query moves
  const n = values.length, j = Math.min(Math.floor(place), n - 1), turn = (place - j) * Math.PI / 2;
  const at = (a, b) => values.map((_, k) => k === j - 1 ? a : k === j ? b : 0);
  const agreement = at(Math.cos(turn), Math.sin(turn)), speed = at(-Math.sin(turn), Math.cos(turn));
  const exps = agreement.map(a => Math.exp(sharpness * (a - Math.max(...agreement)))), sum = exps.reduce((a, b) => a + b, 0);
  const shares = exps.map(e => e / sum), answer = shares.reduce((total, w, k) => total + w * values[k], 0);
  const slope = sharpness * Math.PI / 2 * shares.reduce((total, w, k) => total + w * (values[k] - answer) * speed[k], 0);
  return { agreement, shares, answer, slope };
}

function render({ model, el }) {
  const values = model.get("values"), n = values.length, start = ["place", "sharpness"].map(key => [key, model.get(key)]);
  el.innerHTML = `
    <div class="tfm-controls">
      <label class="tfm-control tfm-wide">query at <span class="tfm-value" aria-hidden="true"></span>
        <input type="range" data-key="place" min="1" max="${n}" step="0.05">
        <span class="tfm-ticks" aria-hidden="true">${values.map((_, j) => `<span>key ${j + 1}</span>`).join("")}</span></label>
      <label class="tfm-control tfm-wide">sharpness <span class="tfm-value" aria-hidden="true"></span>
        <input type="range" data-key="sharpness" min="0" max="${SHARPEST}" step="0.1">
        <span class="tfm-ticks" aria-hidden="true"><span>plain mean</span><span>lookup</span></span></label>
      <button type="button" class="tfm-reset">reset</button>
    </div>
    <table class="tfm-table tfm-softdict"><thead><tr><th scope="col">key</th><th scope="col">score</th><th scope="col">weight</th><th scope="col">value</th></tr></thead>
      <tbody>${values.map((v, j) => `<tr><th scope="row">${j + 1}</th><td class="tfm-digits"></td><td><span class="tfm-digits"></span><span class="tfm-bar"></span></td><td class="tfm-digits">${digits(v, 0)}</td></tr>`).join("")}</tbody></table>
    <svg class="tfm-softcurve" role="img" style="font-size:.875em"></svg>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), all = q => [...el.querySelectorAll(q)];
  const low = Math.min(...values), high = Math.max(...values);
  let width = 360;                               // of the curve in pixels, so that its text is as large as the text around it
  const x = place => 40 + (width - 64) * (place - 1) / (n - 1), y = v => 132 - 116 * (v - low) / (high - low || 1);

  function curve(sharpness) {                    // the answer at every place
    const places = Array.from({ length: 40 * (n - 1) + 1 }, (_, i) => 1 + i / 40);
    return "M" + places.map(p => `${x(p).toFixed(1)} ${y(row(values, Math.min(p, n), sharpness).answer).toFixed(1)}`).join("L");
  }

  function draw() {
    const place = model.get("place"), sharpness = model.get("sharpness"), { agreement, shares, answer, slope } = row(values, place, sharpness);
    const entropy = Math.max(0, -shares.reduce((sum, w) => sum + (w && w * Math.log2(w)), 0));
    all("input").forEach(input => {
      const value = model.get(input.dataset.key), on = input.dataset.key === "place" && Number.isInteger(value);
      const said = on ? `key ${value}` : digits(value, input.dataset.key === "place" ? 2 : 1);
      input.value = value;
      input.setAttribute("aria-valuetext", `${said}: answer ${digits(answer, 2)}`);
      input.parentElement.querySelector(".tfm-value").textContent = said;
    });
    all("tbody tr").forEach((tr, j) => {
      const [agrees, share] = tr.querySelectorAll(".tfm-digits");
      agrees.textContent = digits(agreement[j], 2);
      share.textContent = digits(shares[j], 3);
      tr.querySelector(".tfm-bar").style.setProperty("--part", shares[j]);
    });
    const svg = $("svg");
    svg.setAttribute("aria-label", `the answer at every position of the query, from ${digits(row(values, 1, sharpness).answer, 2)} at key 1 to ${digits(row(values, n, sharpness).answer, 2)} at key ${n}; at the query it is ${digits(answer, 2)}`);
    svg.setAttribute("viewBox", `0 0 ${width} 172`);
    svg.innerHTML = `<path class="tfm-axis" d="M40 132H${width - 24}M40 132V16${values.map((_, j) => `M${x(j + 1)} 132v5`).join("")}"/>
      ${values.map((v, j) => `<text x="${x(j + 1)}" y="150">key ${j + 1}</text><text class="tfm-left" x="32" y="${y(v) + 4}">${digits(v, 0)}</text>`).join("")}
      <text x="${width / 2 + 8}" y="168" class="tfm-faint">position of the query</text>
      <path class="tfm-answer" d="${curve(sharpness)}"/><circle class="tfm-here" cx="${x(place)}" cy="${y(answer)}" r="6"/>`;
    $(".tfm-readout").textContent = `answer ${digits(answer, 2)}, slope ${digits(slope, 3)} · entropy ${digits(entropy, 2)} of at most ${digits(Math.log2(n), 2)} bits, as spread out as equal weights on ${digits(2 ** entropy, 2)} of ${n} keys`;
  }

  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  all("input").forEach(input => { input.oninput = () => put(input.dataset.key, Number(input.value)); });
  $(".tfm-reset").onclick = () => start.forEach(([key, value]) => put(key, value));
  const watched = ["change:place", "change:sharpness"];
  watched.forEach(event => model.on(event, draw));
  const resized = new ResizeObserver(() => {
    const now = Math.round($("svg").getBoundingClientRect().width);
    if (now && now !== width) { width = now; draw(); }
  });
  resized.observe(el);
  draw();
  return () => { resized.disconnect(); watched.forEach(event => model.off(event, draw)); };
}

export default { render };
