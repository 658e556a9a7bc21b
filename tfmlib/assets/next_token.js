// The next token: a model's logits after a text, the settings that reshape and truncate them, and twenty seeded samples; and,
// once it has been loaded, the model itself, which reads and writes any text.
// State: prompts (texts), logits (for each, a hundred times the logit of every token), tokens (how each is written),
// prompt (the one that is shown), octaves (the temperature is 2^octaves), seed, and, where the figure offers to truncate, k (0: all), p (1: all), least (min-p; 0: all),
// name (of the model that can be loaded; "": none), size (of its file, as text), lead (what stands before every text). In Jupyter _weights and _tokenizer hold the files.
import { softmax } from "./live/decoder.js";
import { offer, offered, reader, safe } from "./live/running.js";
import { filtered, sampled, uniform } from "./live/sampling.js";

const SHOWN = 12, DRAWS = 20, WRITTEN = 20;
const ALL = { k: 0, p: 1, least: 0 };           // without them: nothing is truncated
const EVERY = [
  { key: "octaves", name: "temperature", min: -3, max: 2, step: 0.25, say: v => (2 ** v).toFixed(2) },
  { key: "k", name: "top-k", min: 0, max: 100, step: 1, say: v => v ? `${v}` : "off" },
  { key: "p", name: "top-p", min: 0.05, max: 1, step: 0.05, say: v => v < 1 ? v.toFixed(2) : "off" },
  { key: "least", name: "min-p", min: 0, max: 0.5, step: 0.01, say: v => v ? v.toFixed(2) : "off" },
  { key: "seed", name: "seed of the samples", min: 0, max: 99, step: 1, say: v => `${v}` },
];

function render({ model, el }) {
  const SETTINGS = EVERY.filter(s => model.get(s.key) !== undefined);
  const prompts = model.get("prompts"), tokens = model.get("tokens"), canned = model.get("logits").map(row => row.map(z => z / 100));
  const keys = ["prompt", ...SETTINGS.map(s => s.key)], start = JSON.stringify(keys.map(key => [key, model.get(key)]));
  const percent = x => x === 0 ? "–" : x < 0.0005 ? "<0.1 %" : `${(100 * x).toFixed(1)} %`;
  el.innerHTML = `
    <div class="tfm-controls"><label class="tfm-control">after <select>${prompts.map((t, i) => `<option value="${i}">${safe(t)}</option>`).join("")}</select></label>
      <button type="button" class="tfm-reset">reset</button></div>
    ${offer(model, "and type your own text")}
    <div class="tfm-live" hidden><label>your text <textarea class="tfm-text" rows="2" spellcheck="false"></textarea></label><p class="tfm-unknown" role="status"></p>
      <div class="tfm-controls"><button type="button">write a token</button><button type="button">write ${WRITTEN} tokens</button>
        <label class="tfm-control">attention of <select></select></label></div>
      <ol class="tfm-chips" aria-label="tokens, and the weight that the last one gives to each"></ol><p class="tfm-count" aria-live="off"></p></div>
    <div class="tfm-duo">${SETTINGS.map(s => `<label class="tfm-control">${s.name} <span class="tfm-value" aria-hidden="true"></span><input type="range" min="${s.min}" max="${s.max}" step="${s.step}"></label>`).join("")}</div>
    <table class="tfm-table tfm-next"><thead><tr><th scope="col">token</th><th scope="col">model</th><th scope="col">after the settings</th><th scope="col">sampled</th></tr></thead>
      <tbody>${"<tr><th scope=\"row\"></th><td class=\"tfm-digits\"></td><td><span class=\"tfm-digits\"></span><span class=\"tfm-bar\"></span></td><td class=\"tfm-digits\"></td></tr>".repeat(SHOWN + 1)}</tbody></table>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), select = $("select"), labels = [...el.querySelectorAll(".tfm-duo label")], rows = [...el.querySelectorAll("tbody tr")];
  const text = $("textarea"), chips = $(".tfm-chips"), heads = $(".tfm-live select"), [one, many] = el.querySelectorAll(".tfm-live button");
  rows[SHOWN].querySelector(".tfm-bar").style.display = "none";    // many tokens together, on another scale
  let live = null, numbers = null, shares = [], writing = 0, written = null;    // written: the ids of the text, where the model has written some

  function now() {                               // the logits after the text, and with the model loaded its tokens and weights
    if (!live) return { logits: canned[model.get("prompt")] };
    const every = written ?? live.tokenizer.encode(model.get("lead") + text.value), most = live.decoder.config.max_len, ids = every.slice(0, most);
    const unknown = written ? [] : live.tokenizer.unknown?.(text.value) ?? [];
    return { ...live.reader.read(ids), ids, unknown, full: every.length >= most, cut: every.length - ids.length };
  }

  function drawChips({ ids, unknown, weights, full, cut }) {
    const [layer, head] = heads.value.split(".").map(Number), given = weights[layer][head], most = Math.max(...given), { count } = live.reader;
    chips.innerHTML = ids.map((id, i) => `<li class="tfm-chip" style="--part: ${(given[i] / most).toFixed(3)}">${safe(tokens[id])} <small>${given[i] < 0.005 ? "" : Math.round(100 * given[i])}</small></li>`).join("");
    one.disabled = many.disabled = full;
    const lost = unknown.length ? `Not in the vocabulary, so left out: ${unknown.map(piece => piece.trim() || piece).join(", ")}.` : "";
    if ($(".tfm-unknown").textContent !== lost) $(".tfm-unknown").textContent = lost;
    $(".tfm-count").textContent = `${ids.length} tokens, each with the weight in per cent that the last one gives to it. ` + (full ? `The model reads at most ${ids.length} tokens${cut ? `, so the last ${cut} are left out` : ""}. ` : "")
      + `So far, the model has processed ${count.cached} tokens, as it keeps the keys and values of earlier ones (a KV cache); without, it would have been ${count.whole}.`;
  }

  function draw() {
    const told = Object.fromEntries(SETTINGS.map(s => [s.key, model.get(s.key)])), found = now(), logits = Array.from(found.logits), before = softmax(logits);
    shares = filtered(logits, { ...ALL, ...told });
    const source = uniform(told.seed), took = Array.from({ length: DRAWS }, () => sampled(shares, source.next().value)), count = i => took.filter(j => j === i).length;
    const best = before.map((_, i) => i).sort((i, j) => before[j] - before[i]).slice(0, SHOWN);
    const kept = shares.filter(s => s > 0).length, held = before.reduce((sum, s, i) => sum + (shares[i] > 0 ? s : 0), 0), most = Math.max(...shares);
    const line = (row, name, was, is, times, out) => {
      row.classList.toggle("tfm-masked", out);
      row.querySelector("th").textContent = name;
      const [a, b, c] = row.querySelectorAll(".tfm-digits");
      a.textContent = percent(was); b.textContent = out ? "cut" : percent(is); c.textContent = times ? `${times} ×` : "";
      row.querySelector(".tfm-bar").style.setProperty("--part", Math.min(1, is / most));
    };
    best.forEach((i, n) => line(rows[n], tokens[i], before[i], shares[i], count(i), !shares[i]));
    const rest = new Set(best), others = f => f.reduce((sum, s, i) => sum + (rest.has(i) ? 0 : s), 0);
    const alive = shares.filter((s, i) => s > 0 && !rest.has(i)).length;
    line(rows[SHOWN], `${alive} others`, others(before), others(shares), took.filter(i => !rest.has(i)).length, !alive);
    select.value = model.get("prompt");
    SETTINGS.forEach((s, n) => {
      const input = labels[n].querySelector("input");
      input.value = told[s.key];
      input.setAttribute("aria-valuetext", s.say(told[s.key]));
      labels[n].querySelector(".tfm-value").textContent = s.say(told[s.key]);
    });
    if (live) drawChips(found);
    const entropy = -shares.reduce((sum, s) => sum + (s && s * Math.log2(s)), 0) + 0;
    const remain = SETTINGS.some(s => s.key in ALL) ? `${kept} of ${tokens.length} tokens remain, with ${(100 * held).toFixed(1)} % of the model's probability. Perplexity: ${(2 ** entropy).toFixed(1)}. ` : "";
    $(".tfm-readout").textContent = `${remain}Twenty samples: ${took.map(i => tokens[i]).join(" · ")}`;
  }

  function write(left) {                         // one token a frame, so that the page stays awake
    if (!left || one.disabled) { writing = 0; return; }
    written = [...written ?? live.tokenizer.encode(model.get("lead") + text.value), sampled(shares, numbers.next().value)];
    text.value = live.tokenizer.decode(written).slice(model.get("lead").length);
    draw();
    writing = requestAnimationFrame(() => write(left - 1));
  }

  const stop = () => { cancelAnimationFrame(writing); writing = 0; };
  const begin = () => { stop(); written = null; text.value = prompts[model.get("prompt")]; numbers = uniform(model.get("seed")); };
  offered(el, model, found => {
    live = found;
    live.reader = reader(live.decoder);
    const { n_layers: layers, n_heads: count } = live.decoder.config;
    heads.innerHTML = Array.from({ length: layers * count }, (_, i) => `<option value="${Math.floor(i / count)}.${i % count}">layer ${Math.floor(i / count)}, head ${i % count}</option>`).join("");
    begin();
    draw();
    text.focus();
  });
  text.oninput = () => { stop(); written = null; draw(); };
  heads.onchange = draw;
  one.onclick = () => { stop(); write(1); };
  many.onclick = () => { stop(); write(WRITTEN); };

  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  select.onchange = () => put("prompt", Number(select.value));
  SETTINGS.forEach((s, n) => { labels[n].querySelector("input").oninput = e => put(s.key, Number(e.target.value)); });
  $(".tfm-reset").onclick = () => { JSON.parse(start).forEach(([key, value]) => put(key, value)); if (live) { begin(); live.reader = reader(live.decoder); draw(); } };
  const changed = { prompt: () => { if (live) begin(); draw(); }, seed: () => { numbers = uniform(model.get("seed")); draw(); } };
  const watched = keys.map(key => ["change:" + key, changed[key] ?? draw]);
  watched.forEach(([event, f]) => model.on(event, f));
  draw();
  return () => { stop(); watched.forEach(([event, f]) => model.off(event, f)); };
}

export default { render };
