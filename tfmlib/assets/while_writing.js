// Cross-attention while a translation is written. State: sources, targets (lists of words, end marks included), looks (names of heads),
// weights (sentence, look, target word, source word), words and chances (sentence, target word, likeliest next words),
// sentence, look, step (the word that is being written).
const STEP = 28, LEFT = 118, RIGHT = 272, WIDE = 400;

function render({ model, el }) {
  const sources = model.get("sources"), targets = model.get("targets"), looks = model.get("looks"), weights = model.get("weights");
  const keys = ["sentence", "look", "step"], start = JSON.stringify(keys.map(key => [key, model.get(key)]));
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt()};`);
  const options = names => names.map((name, i) => `<option value="${i}">${safe(name)}</option>`).join("");
  el.innerHTML = `
    <div class="tfm-controls">
      <label class="tfm-control">sentence <select>${options(sources.map(s => s.slice(0, -1).join(" ")))}</select></label>
      <label class="tfm-control">cross-attention of <select>${options(looks)}</select></label>
    </div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">word <span class="tfm-value" aria-hidden="true"></span><input type="range" min="1" step="1"></label></div>
    <div class="tfm-controls"><span class="tfm-buttons" role="group" aria-label="word"><button type="button">◀ word back</button><button type="button">next word ▶</button></span>
      <button type="button" class="tfm-reset">reset</button></div>
    <svg class="tfm-links tfm-writes" role="img" font-size="14"></svg>
    <table class="tfm-table tfm-next"><thead><tr><th scope="col">next word</th><th scope="col" colspan="2">probability</th></tr></thead><tbody></tbody></table>
    <output class="tfm-readout" aria-live="polite"></output>`;
  const $ = q => el.querySelector(q), [sentence, look] = el.querySelectorAll("select"), slider = $("input"), [back, next] = el.querySelectorAll(".tfm-buttons button");
  const put = (...pairs) => { for (const [name, value] of pairs) model.set(name, value); model.save_changes(); };
  const strongest = row => row.indexOf(Math.max(...row));
  const y = i => 16 + STEP * i;
  const line = (i, j, w, kind) => `<path class="${kind}" d="M${LEFT} ${y(i)}C${LEFT + 54} ${y(i)} ${RIGHT - 54} ${y(j)} ${RIGHT} ${y(j)}" stroke-width="${(.6 + 6 * w).toFixed(1)}" stroke-opacity="${(.15 + .85 * w).toFixed(2)}"/>`;

  function draw() {
    const s = model.get("sentence"), source = sources[s], target = targets[s], at = Math.min(model.get("step"), target.length - 1), W = weights[s][model.get("look")];
    const words = model.get("words")[s][at], chances = model.get("chances")[s][at], now = W[at];
    sentence.value = s; look.value = model.get("look");
    slider.max = target.length; slider.value = at + 1;
    slider.setAttribute("aria-valuetext", `word ${at + 1} of ${target.length}: ${target[at]}`);
    $(".tfm-value").textContent = `${at + 1} of ${target.length}`;
    back.disabled = at === 0; next.disabled = at === target.length - 1;
    const said = `“${target[at]}” attends most to “${source[strongest(now)]}” (${now[strongest(now)].toFixed(2)})`;
    const svg = $("svg"), label = (x, anchor, words, upto, bold) => words.map((t, i) => i <= upto ? `<text x="${x}" y="${y(i) + 5}" text-anchor="${anchor}"${i === bold ? ' class="tfm-asks"' : ""}>${safe(t)}</text>` : "").join("");
    svg.setAttribute("viewBox", `0 0 ${WIDE} ${STEP * Math.max(source.length, target.length) + 4}`);
    svg.setAttribute("aria-label", `${target.slice(0, at).join(" ")} … ${said}`);
    svg.innerHTML = `<g fill="none">${W.slice(0, at).map((row, i) => line(i, strongest(row), .12, "tfm-then")).join("")}${now.map((w, j) => w < .01 ? "" : line(at, j, w, "tfm-now")).join("")}</g>`
      + label(LEFT - 10, "end", target, at, at) + label(RIGHT + 10, "start", source, source.length, -1);
    $("tbody").innerHTML = words.map((word, k) => `<tr><th scope="row">${safe(word)}</th><td><span class="tfm-bar" style="--part:${chances[k]}"></span></td><td class="tfm-digits">${chances[k].toFixed(3)}</td></tr>`).join("");
    $(".tfm-readout").textContent = `${said}, with probability ${chances[Math.max(words.indexOf(target[at]), 0)].toFixed(2)}.`;
  }

  sentence.onchange = () => put(["step", 0], ["sentence", Number(sentence.value)]);
  look.onchange = () => put(["look", Number(look.value)]);
  slider.oninput = () => put(["step", slider.value - 1]);
  back.onclick = () => put(["step", Number(slider.value) - 2]);
  next.onclick = () => put(["step", Number(slider.value)]);
  $(".tfm-reset").onclick = () => put(...JSON.parse(start));
  const watched = keys.map(name => "change:" + name);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
