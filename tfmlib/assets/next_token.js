// The next token: a model's scores after a text, the settings that reshape and cut them, and twenty seeded draws.
// State: prompts (texts), logits (for each, a hundred times the score of every token), tokens (how each is written),
// prompt (the one that is shown), octaves (the temperature is 2^octaves), k (0: all), p (1: all), least (min-p; 0: all), seed.
const SHOWN = 12, DRAWS = 20;
const SETTINGS = [
  { key: "octaves", name: "temperature", min: -3, max: 2, step: 0.25, say: v => (2 ** v).toFixed(2) },
  { key: "k", name: "top-k", min: 0, max: 100, step: 1, say: v => v ? `${v}` : "off" },
  { key: "p", name: "top-p", min: 0.05, max: 1, step: 0.05, say: v => v < 1 ? v.toFixed(2) : "off" },
  { key: "least", name: "min-p", min: 0, max: 0.5, step: 0.01, say: v => v ? v.toFixed(2) : "off" },
  { key: "seed", name: "seed of the samples", min: 0, max: 99, step: 1, say: v => `${v}` },
];

function softmax(scores) {
  const top = Math.max(...scores), exps = scores.map(s => Math.exp(s - top)), sum = exps.reduce((a, b) => a + b, 0);
  return exps.map(e => e / sum);
}

function filtered(logits, { octaves, k, p, least }) {   // the same steps, in the same order, as tfmlib.decoders.Sampling
  let scores = logits.map(z => z / 2 ** octaves);
  if (k) {
    const last = [...scores].sort((a, b) => b - a)[Math.min(k, scores.length) - 1];
    scores = scores.map(s => s < last ? -Infinity : s);
  }
  if (p < 1) {
    const shares = softmax(scores), order = scores.map((_, i) => i).sort((i, j) => scores[i] - scores[j]), out = new Set();
    let sum = 0;
    for (const i of order.slice(0, -1)) { sum += shares[i]; if (sum <= 1 - p) out.add(i); }
    scores = scores.map((s, i) => out.has(i) ? -Infinity : s);
  }
  if (least) {
    const shares = softmax(scores), most = Math.max(...shares);
    scores = scores.map((s, i) => shares[i] < least * most ? -Infinity : s);
  }
  return softmax(scores);
}

function* uniform(seed) {                               // mulberry32: numbers from 0 to 1 that belong to a seed
  let a = seed >>> 0;
  for (;;) {
    a = (a + 0x6D2B79F5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    yield ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }
}

function drawn(shares, seed) {                          // the first token at which the shares, added up, exceed the number
  const source = uniform(seed), sums = [];
  let sum = 0;
  for (const s of shares) sums.push(sum += s);
  return Array.from({ length: DRAWS }, () => { const u = source.next().value * sum; return sums.findIndex(s => s > u); });
}

function render({ model, el }) {
  const prompts = model.get("prompts"), tokens = model.get("tokens"), logits = model.get("logits").map(row => row.map(z => z / 100));
  const keys = ["prompt", ...SETTINGS.map(s => s.key)], start = JSON.stringify(keys.map(key => [key, model.get(key)]));
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt()};`);
  const percent = x => x === 0 ? "–" : x < 0.0005 ? "<0.1 %" : `${(100 * x).toFixed(1)} %`;
  el.innerHTML = `
    <div class="tfm-controls"><label class="tfm-control">after <select>${prompts.map((t, i) => `<option value="${i}">${safe(t)}</option>`).join("")}</select></label>
      <button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-duo">${SETTINGS.map(s => `<label class="tfm-control">${s.name} <span class="tfm-value" aria-hidden="true"></span><input type="range" min="${s.min}" max="${s.max}" step="${s.step}"></label>`).join("")}</div>
    <table class="tfm-table tfm-next"><thead><tr><th scope="col">token</th><th scope="col">model</th><th scope="col">after the settings</th><th scope="col">sampled</th></tr></thead>
      <tbody>${"<tr><th scope=\"row\"></th><td class=\"tfm-digits\"></td><td><span class=\"tfm-digits\"></span><span class=\"tfm-bar\"></span></td><td class=\"tfm-digits\"></td></tr>".repeat(SHOWN + 1)}</tbody></table>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), select = $("select"), labels = [...el.querySelectorAll(".tfm-duo label")], rows = [...el.querySelectorAll("tbody tr")];
  rows[SHOWN].querySelector(".tfm-bar").style.display = "none";    // many tokens together, on another scale
  const base = logits.map(softmax), best = base.map(shares => shares.map((_, i) => i).sort((i, j) => shares[j] - shares[i]).slice(0, SHOWN));

  function draw() {
    const at = model.get("prompt"), told = Object.fromEntries(SETTINGS.map(s => [s.key, model.get(s.key)]));
    const before = base[at], shares = filtered(logits[at], told), took = drawn(shares, told.seed), count = i => took.filter(j => j === i).length;
    const kept = shares.filter(s => s > 0).length, held = before.reduce((sum, s, i) => sum + (shares[i] > 0 ? s : 0), 0), most = Math.max(...shares);
    const line = (row, name, was, now, times, out) => {
      row.classList.toggle("tfm-masked", out);
      row.querySelector("th").textContent = name;
      const [a, b, c] = row.querySelectorAll(".tfm-digits");
      a.textContent = percent(was); b.textContent = out ? "cut" : percent(now); c.textContent = times ? `${times} ×` : "";
      row.querySelector(".tfm-bar").style.setProperty("--part", Math.min(1, now / most));
    };
    best[at].forEach((i, n) => line(rows[n], tokens[i], before[i], shares[i], count(i), !shares[i]));
    const rest = new Set(best[at]), others = f => f.reduce((sum, s, i) => sum + (rest.has(i) ? 0 : s), 0);
    const alive = shares.filter((s, i) => s > 0 && !rest.has(i)).length;
    line(rows[SHOWN], `${alive} others`, others(before), others(shares), took.filter(i => !rest.has(i)).length, !alive);
    select.value = at;
    SETTINGS.forEach((s, n) => {
      const input = labels[n].querySelector("input");
      input.value = told[s.key];
      input.setAttribute("aria-valuetext", s.say(told[s.key]));
      labels[n].querySelector(".tfm-value").textContent = s.say(told[s.key]);
    });
    const entropy = -shares.reduce((sum, s) => sum + (s && s * Math.log2(s)), 0) + 0;
    $(".tfm-readout").textContent = `${kept} of ${tokens.length} tokens remain, with ${(100 * held).toFixed(1)} % of the model's probability. Perplexity: ${(2 ** entropy).toFixed(1)}. Twenty samples: ${took.map(i => tokens[i]).join(" · ")}`;
  }

  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  select.onchange = () => put("prompt", Number(select.value));
  SETTINGS.forEach((s, n) => { labels[n].querySelector("input").oninput = e => put(s.key, Number(e.target.value)); });
  $(".tfm-reset").onclick = () => JSON.parse(start).forEach(([key, value]) => put(key, value));
  const watched = keys.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
