// One sentence under each objective: what the model reads, what it must predict, who attends to whom, and the cost.
// State: tokens (all that occur), objectives (names), stacks (1 or 2, of each), rates (percentages of each objective),
// examples (objective, rate, draw: [ids read, ids to predict or -1, positions that everybody sees]),
// costs (objective, rate, draw: FLOPs, with the causal LM's as 1), objective, rate and draw (what is shown).
function render({ model, el }) {
  const tokens = model.get("tokens"), objectives = model.get("objectives"), stacks = model.get("stacks"), rates = model.get("rates");
  const examples = model.get("examples"), costs = model.get("costs");
  const keys = ["objective", "rate", "draw"], start = JSON.stringify(keys.map(key => [key, model.get(key)]));
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt()};`);
  el.innerHTML = `
    <div class="tfm-controls"><label class="tfm-control">objective <select>${objectives.map((name, i) => `<option value="${i}">${safe(name)}</option>`).join("")}</select></label>
      <span class="tfm-buttons"><button type="button" class="tfm-draw">draw again</button><button type="button" class="tfm-reset">reset</button></span></div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">rate: <span class="tfm-value" aria-hidden="true"></span><input type="range" min="0" step="1"></label></div>
    <div class="tfm-noised"><div><p class="tfm-reads"></p><ol class="tfm-chips" aria-label="tokens that are read"></ol>
      <p class="tfm-predicts"></p><ol class="tfm-chips" aria-label="tokens to predict"></ol></div>
      <svg class="tfm-plot" viewBox="-18 -18 222 222" role="img"></svg></div>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), select = $("select"), slider = $("input"), [reads, predicts] = el.querySelectorAll("ol"), grid = $("svg");
  const put = (name, value) => { model.set(name, value); model.save_changes(); };
  const chip = id => `<li class="tfm-chip${id < 0 ? " tfm-idle" : /^[[<]/.test(tokens[id]) ? " tfm-new" : ""}">${id < 0 ? "·" : safe(tokens[id])}</li>`;

  function draw() {
    const o = model.get("objective"), many = rates[o].length, r = Math.min(model.get("rate"), many - 1), d = model.get("draw") % examples[o][r].length;
    const [seen, target, open] = examples[o][r][d], two = stacks[o] === 2, n = two ? seen.length + target.length : seen.length, side = 186 / n;
    select.value = o;
    slider.max = Math.max(many - 1, 1);
    slider.value = r;
    slider.disabled = many < 2;
    $("label .tfm-value").textContent = many < 2 ? "none; this objective has no rate" : `${rates[o][r]} %`;
    slider.setAttribute("aria-valuetext", $("label .tfm-value").textContent);
    $(".tfm-reads").textContent = two ? "The encoder reads" : "The model reads";
    $(".tfm-predicts").textContent = two ? "The decoder predicts, one after another" : "It predicts, at these positions";
    reads.innerHTML = seen.map(chip).join("");
    predicts.innerHTML = target.map(chip).join("");
    let path = "";
    for (let i = 0; i < n; i++) {
      const to = two && i < seen.length ? seen.length : Math.max(i + 1, open);
      path += `M0 ${(i * side).toFixed(2)}h${(to * side).toFixed(2)}v${(side * .86).toFixed(2)}H0z`;
    }
    const at = (seen.length * side).toFixed(2), edge = two ? `<path class="tfm-axis" d="M${at} 0V186M0 ${at}H186"/>` : "";
    grid.innerHTML = `<path class="tfm-attends" d="${path}"/><path class="tfm-axis" d="M0 0H186V186H0z"/>${edge}
      <text x="93" y="-5" text-anchor="middle">keys</text><text transform="translate(-5 93) rotate(-90)" text-anchor="middle">queries</text>`;
    const pairs = [...Array(n).keys()].reduce((sum, i) => sum + (two && i < seen.length ? seen.length : Math.max(i + 1, open)), 0);
    grid.setAttribute("aria-label", `Who attends to whom: ${pairs} of ${n * n} pairs of a query and a key. ${two ? `The first ${seen.length} positions are the encoder's.` : open >= n ? "Every position attends to all." : `${open} positions are seen by all, the others only by later ones.`}`);
    const losses = target.filter(id => id >= 0).length, read = two ? `${seen.length} + ${target.length}` : seen.length;
    $(".tfm-readout").textContent = `${objectives[o]}: ${read} positions are computed for ${losses} predictions. The FLOPs are ${costs[o][r][d].toFixed(2)} times those of the causal LM on the same sentence.`;
  }

  select.onchange = () => put("objective", Number(select.value));
  slider.oninput = () => put("rate", Number(slider.value));
  $(".tfm-draw").onclick = () => put("draw", model.get("draw") + 1);
  $(".tfm-reset").onclick = () => JSON.parse(start).forEach(([name, value]) => put(name, value));
  const watched = keys.map(name => "change:" + name);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
