// Forms of parallel training, one step after another. State: names (of the forms), moments (of each form: [said, holds, does, sends], where holds
// lists what each rank has, does is hold, compute, send or wait, and sends are [from, to, label, number of messages]), form, step.
const WIDE = 116, TOP = 84, CHIP = 22;

function render({ model, el }) {
  const names = model.get("names"), moments = model.get("moments"), start = ["form", "step"].map(key => [key, model.get(key)]);
  const safe = s => s.replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  const still = matchMedia("(prefers-reduced-motion: reduce)"), states = { hold: "holds", compute: "computes", send: "sends", wait: "waits" };
  el.innerHTML = `
    <div class="tfm-controls">
      <label class="tfm-control">show <select>${names.map(n => `<option>${safe(n)}</option>`).join("")}</select></label>
      <span class="tfm-buttons" role="group" aria-label="steps"><button type="button" class="tfm-back">back</button><button type="button" class="tfm-next">next</button><button type="button" class="tfm-play">play</button></span>
      <button type="button" class="tfm-reset">reset</button>
    </div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">step <span class="tfm-value tfm-said" aria-hidden="true"></span><input type="range" min="1" step="1"></label></div>
    <svg class="tfm-ranks" role="img" font-size="13"></svg>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), slider = $("input"), play = $(".tfm-play");
  let timer = 0;

  function picture(holds, does, sends, tall, last) {
    const out = [], middle = r => r * WIDE + WIDE / 2, p = holds.length;
    out.push('<defs><marker id="tfm-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="tfm-tip" d="M0 .5L8 4L0 7.5z"/></marker></defs>');
    sends.forEach(([a, b, label]) => {                       // over the ranks: to the left within to the right within round the end, so that no two cross
      const side = b > a ? 1 : -1, far = Math.abs(a - b) > 1, lift = far ? 18 : b > a ? 42 : 64, aside = side * (b > a ? 14 : 30) * (far ? -1 : 1);
      const x = middle(a) + aside, y = middle(b) - aside;
      out.push(`<path class="tfm-sent" d="M${x} ${TOP - 4}V${lift}H${y}V${TOP - 4}" marker-end="url(#tfm-tip)"/>`);
      out.push(`<text class="tfm-sent-label" text-anchor="middle" x="${(x + y) / 2}" y="${lift - 4}">${safe(label)}</text>`);
    });
    for (let r = 0; r < p; r++) {
      out.push(`<rect class="tfm-rank tfm-${does[r]}" x="${r * WIDE + 6}" y="${TOP}" width="${WIDE - 12}" height="${tall * CHIP + 48}" rx="4"/>`);
      out.push(`<text x="${middle(r)}" y="${TOP + 18}" text-anchor="middle">rank ${r}</text><text class="tfm-state" x="${middle(r)}" y="${TOP + 35}" text-anchor="middle">${states[does[r]]}</text>`);
      holds[r].forEach((h, i) => out.push(`<rect class="tfm-slot${h === last[r][i] ? " tfm-final" : ""}" x="${r * WIDE + 14}" y="${TOP + 43 + i * CHIP}" width="${WIDE - 28}" height="${CHIP - 2}"/><text x="${middle(r)}" y="${TOP + 58 + i * CHIP}" text-anchor="middle" class="tfm-held">${safe(h)}</text>`));
    }
    $("svg").setAttribute("viewBox", `0 0 ${p * WIDE} ${TOP + tall * CHIP + 52}`);
    $("svg").innerHTML = out.join("");
  }

  function draw() {
    const form = model.get("form"), all = moments[form], n = Math.min(model.get("step"), all.length - 1), [said, holds, does, sends] = all[n];
    picture(holds, does, sends, Math.max(...all.map(m => Math.max(...m[1].map(h => h.length)))), all.at(-1)[1]);
    $("select").selectedIndex = form;
    slider.max = all.length; slider.value = n + 1;
    const told = `${n + 1} of ${all.length}: ${said}`;
    slider.setAttribute("aria-valuetext", told);
    $("label .tfm-value").textContent = told;
    $("svg").setAttribute("aria-label", `${names[form]}, step ${told} ${holds.map((h, r) => `Rank ${r} ${does[r] === "hold" ? "" : `${states[does[r]]} and `}holds ${h.join(", ") || "nothing"}.`).join(" ")} ${sends.map(([a, b, label]) => `Rank ${a} sends ${label} to rank ${b}.`).join(" ")}`);
    const waits = all.map(m => m[2].filter(d => d === "wait").length), sum = list => list.reduce((a, b) => a + b, 0);
    const sent = sum(all.slice(0, n + 1).flatMap(m => m[3].map(([, , , times]) => times)));
    $(".tfm-readout").textContent = `Messages so far: ${sent}. Ranks waiting now: ${waits[n]}; in the whole run, ${sum(waits)} of ${all.length * holds.length} rank-steps.`;
    $(".tfm-back").disabled = n === 0; $(".tfm-next").disabled = n === all.length - 1;
  }

  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  const last = () => moments[model.get("form")].length - 1;
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "play"; };
  const move = by => put("step", Math.max(0, Math.min(last(), model.get("step") + by)));
  $("select").onchange = e => { const form = e.target.selectedIndex; stop(); put("step", 0); put("form", form); };   // drawing in between sets it back
  $(".tfm-back").onclick = () => { stop(); move(-1); };
  $(".tfm-next").onclick = () => { stop(); move(1); };
  $(".tfm-reset").onclick = () => { stop(); start.forEach(([key, value]) => put(key, value)); };
  slider.oninput = () => { stop(); put("step", Number(slider.value) - 1); };
  play.onclick = () => {
    if (timer) return stop();
    if (model.get("step") >= last()) put("step", 0);
    play.textContent = "stop";
    timer = setInterval(() => { move(1); if (model.get("step") >= last()) stop(); }, still.matches ? 1500 : 800);
  };
  const watched = ["change:form", "change:step"];
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => { stop(); watched.forEach(event => model.off(event, draw)); };
}

export default { render };
