// A text is continued without and with a KV cache, and the tokens that each pass processes are counted.
// State: text and lead (what stands before every text), n (new tokens), without and kept (tokens that the passes of the two ways process on the example,
// counted in PyTorch), name and size of the model. In Jupyter _weights and _tokenizer hold its files.
import { offer, offered, safe, writing } from "./live/running.js";

const WAYS = [{ key: "without", name: "without a cache", keep: false }, { key: "kept", name: "with a cache", keep: true }];
const WIDE = 300, TALL = 90;

function render({ model, el }) {
  const first = model.get("n");
  el.innerHTML = `
    ${offer(model, "and let it write, in both ways")}
    <div class="tfm-live" hidden><label>your text <textarea class="tfm-text" rows="2" spellcheck="false"></textarea></label></div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">new tokens <span class="tfm-value" aria-hidden="true"></span><input type="range" min="1" max="40" step="1"></label></div>
    <div class="tfm-duo tfm-both">${WAYS.map(way => `<div role="group" aria-label="${way.name}"><p><b>${way.name}</b></p><div class="tfm-live" hidden><button type="button"></button><p class="tfm-wrote"></p></div>
      <svg class="tfm-passes" viewBox="0 0 ${WIDE} ${TALL + 2}" role="img"></svg><p class="tfm-tally"></p></div>`).join("")}</div>
    <div class="tfm-controls"><button type="button" class="tfm-reset">reset</button></div>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), text = $("textarea"), slider = $("input"), parts = [...el.querySelectorAll("[role=group]")];
  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  const sum = list => list.reduce((a, b) => a + b, 0), many = (n, what, more = `${what}s`) => `${n} ${n === 1 ? what : more}`;
  const time = ms => `${ms.toFixed(ms < 100 ? 1 : 0)} ms`;
  let live = null, runs = {}, frame = 0, next = null;          // next: the way that writes when this one is done; runs: of each way, the ids that it has written, the tokens that its passes have processed, and its milliseconds

  const ids = () => live.tokenizer.encode(model.get("lead") + text.value);
  const whole = run => run && run.processed.length === model.get("n");

  function drawWay(part, { key, name, keep }, room) {
    const n = model.get("n"), run = live ? runs[key] : { processed: model.get(key).slice(0, n) }, passes = run?.processed ?? [], wide = WIDE / n;
    const most = live ? ids().length + n - 1 : Math.max(...model.get("without").slice(0, n)), bar = p => Math.max(2, TALL * p / most);
    part.querySelector("svg").innerHTML = `<path class="tfm-axis" d="M0 ${TALL + 1}H${WIDE}"/>` + passes.map((p, i) => `<rect x="${(i * wide + .5).toFixed(1)}" y="${(TALL - bar(p)).toFixed(1)}" width="${(wide - 1).toFixed(1)}" height="${bar(p).toFixed(1)}"/>`).join("");
    const tally = passes.length ? `${many(sum(passes), "token")} in ${many(passes.length, "pass", "passes")}${run.ms === undefined ? "" : `, ${time(run.ms)}`}` : "Nothing has been written yet.";
    part.querySelector("svg").setAttribute("aria-label", passes.length ? `Tokens processed by each pass ${name}: ${passes.join(", ")}` : "Nothing has been written yet.");
    part.querySelector(".tfm-tally").textContent = tally;
    part.querySelector("button").textContent = `write ${many(n, "token")} ${name}`;
    part.querySelector("button").disabled = !room;
    part.querySelector(".tfm-wrote").innerHTML = run?.ids ? `${safe(text.value)}<b>${safe(live.tokenizer.decode(run.ids))}</b>` : "";
  }

  function say(room) {
    const n = model.get("n"), [without, kept] = WAYS.map(({ key }) => live ? runs[key] : { processed: model.get(key).slice(0, n) });
    if (!room && !ids().length) return "The text has no tokens yet.";
    if (!room) return `The model reads at most ${live.decoder.config.max_len} tokens, new ones included. The text has ${ids().length}: shorten it, or ask for fewer new tokens.`;
    if (!whole(without) || !whole(kept)) return live ? `The text has ${ids().length} tokens, with the paragraph break before it. Let the model write in both ways.` : "";
    const counted = `${many(n, "new token")}: without a cache, ${many(sum(without.processed), "token")} were processed, with a cache ${sum(kept.processed)}.`;
    if (!live) return counted;
    const same = without.ids.join() === kept.ids.join();
    return `${counted} The two texts are ${same ? "identical" : "different"}. In this browser, the passes took ${time(without.ms)} without a cache and ${time(kept.ms)} with one.`;
  }

  function draw() {
    const n = model.get("n"), room = !live || (ids().length > 0 && ids().length + n <= live.decoder.config.max_len);
    slider.value = n;
    slider.setAttribute("aria-valuetext", n);
    $(".tfm-value").textContent = n;
    WAYS.forEach((way, i) => drawWay(parts[i], way, room));
    if (!frame && $(".tfm-readout").textContent !== say(room)) $(".tfm-readout").textContent = say(room);
  }

  const stop = () => { cancelAnimationFrame(frame); frame = 0; next = null; };
  const forget = () => { stop(); runs = {}; draw(); };

  function write(way) {                           // a pass a frame, so that the page stays awake; the milliseconds are those of the passes alone
    const { key, keep } = way;
    if (frame && runs[key] === undefined) { next = way; return; }     // the other one writes its text to the end
    stop();
    WAYS.forEach(({ key }) => { if (!whole(runs[key])) delete runs[key]; });
    const run = runs[key] = { ids: [], processed: [], ms: 0 }, steps = writing(live.decoder, ids(), keep);
    const step = () => {
      const { id, processed, ms } = steps.next().value;
      run.ids.push(id); run.processed.push(processed); run.ms += ms;
      frame = whole(run) ? 0 : requestAnimationFrame(step);
      draw();
      if (!frame && next) { const other = next; next = null; write(other); }
    };
    frame = requestAnimationFrame(step);
  }

  offered(el, model, found => {
    live = found;
    text.value = model.get("text");
    draw();
    text.focus();
  });
  text.oninput = forget;
  slider.oninput = () => put("n", Number(slider.value));
  WAYS.forEach((way, i) => { parts[i].querySelector("button").onclick = () => write(way); });
  $(".tfm-reset").onclick = () => { if (live) text.value = model.get("text"); put("n", first); forget(); };
  model.on("change:n", forget);
  draw();
  return () => { stop(); model.off("change:n", forget); };
}

export default { render };
