// Tokens that choose among experts with limited capacity, as tfmlib.balancing.keep_within_capacity decides.
// State: scores (logits, a row for each token), tilt (added to those of the first expert), capacity, by_weight (order of the queue).
const name = e => `${e}`, many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

export function route(scores, tilt, capacity, byWeight) {   // for each expert the tokens that it keeps and those that it drops, in the order of its queue
  const chosen = scores.map((row, token) => {
    const z = row.map((s, e) => s + (e === 0 ? tilt : 0)), most = Math.max(...z), expert = z.indexOf(most);
    return { token, expert, weight: 1 / z.reduce((sum, s) => sum + Math.exp(s - most), 0) };
  });
  if (byWeight) chosen.sort((a, b) => b.weight - a.weight || a.token - b.token);
  return scores[0].map((_, e) => {
    const queue = chosen.filter(c => c.expert === e);
    return { kept: queue.slice(0, capacity), dropped: queue.slice(capacity) };
  });
}

function render({ model, el }) {
  const keys = ["tilt", "capacity", "by_weight"], start = keys.map(key => [key, model.get(key)]), scores = model.get("scores");
  el.innerHTML = `
    <div class="tfm-controls">
      <label class="tfm-control tfm-wide">tilt towards expert 0 <span class="tfm-value tfm-tilt-value" aria-hidden="true"></span><input class="tfm-tilt" type="range" min="-3" max="5" step="0.5"></label>
      <label class="tfm-control tfm-wide">capacity of each expert <span class="tfm-value tfm-capacity-value" aria-hidden="true"></span><input class="tfm-capacity" type="range" min="1" max="${scores.length}" step="1"></label>
    </div>
    <div class="tfm-controls"><label class="tfm-control"><input type="checkbox" class="tfm-by-weight"> largest weight first</label><button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-experts"></div>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), put = values => { for (const [key, value] of Object.entries(values)) model.set(key, value); model.save_changes(); };

  function draw() {
    const [tilt, capacity, byWeight] = keys.map(key => model.get(key)), experts = route(scores, tilt, capacity, byWeight);
    const chip = (c, kind) => `<li class="tfm-chip ${kind}">${c.token + 1}</li>`;
    $(".tfm-experts").innerHTML = experts.map(({ kept, dropped }, e) => {
      const idle = Math.max(0, capacity - kept.length);
      return `<section class="tfm-expert" aria-label="expert ${name(e)}"><p class="tfm-expert-name">expert ${name(e)}</p>
        <ol class="tfm-chips" aria-label="tokens that expert ${name(e)} processes">${kept.map(c => chip(c, "tfm-new")).join("")}${`<li class="tfm-chip tfm-idle">free</li>`.repeat(idle)}</ol>
        <p class="tfm-expert-name">dropped</p>
        <ol class="tfm-chips tfm-dropped" aria-label="tokens that expert ${name(e)} drops">${dropped.map(c => chip(c, "tfm-out")).join("") || `<li class="tfm-none">none</li>`}</ol></section>`;
    }).join("");
    $(".tfm-tilt").value = tilt;
    $(".tfm-capacity").value = capacity;
    $(".tfm-by-weight").checked = byWeight;
    $(".tfm-tilt-value").textContent = tilt.toFixed(1);
    $(".tfm-capacity-value").textContent = capacity;
    const dropped = experts.flatMap(x => x.dropped.map(c => c.token + 1)).sort((a, b) => a - b), used = scores.length - dropped.length, room = capacity * experts.length;
    $(".tfm-readout").textContent = `${dropped.length ? `${many(dropped.length, "token")} of ${scores.length} dropped: ${dropped.join(", ")}` : `no token of ${scores.length} is dropped`}; ${used} of ${room} slots in use.`;
  }

  $(".tfm-tilt").oninput = () => put({ tilt: Number($(".tfm-tilt").value) });
  $(".tfm-capacity").oninput = () => put({ capacity: Number($(".tfm-capacity").value) });
  $(".tfm-by-weight").onchange = () => put({ by_weight: $(".tfm-by-weight").checked });
  $(".tfm-reset").onclick = () => put(Object.fromEntries(start));
  const watched = keys.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
