// What the figures that run a model of the book have in common: they offer to load it, read texts with a KV cache, and count what is processed.
import { Decoder, readTensors } from "./decoder.js";
import { Tokenizer, Words } from "./tokenizer.js";

export const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt()};`);

async function load(model) {                     // the files: beside this module on a page, from the kernel in Jupyter; a model whose tokens are words has them in its own
  const fetched = async file => {
    const answer = await fetch(new URL(file, import.meta.url));
    if (!answer.ok) throw new Error(`${file}: ${answer.status}`);
    return answer.arrayBuffer();
  };
  const held = model.get("_weights");
  const weights = held ? held.buffer.slice(held.byteOffset, held.byteOffset + held.byteLength) : await fetched(`${model.get("name")}.safetensors`);
  const read = readTensors(weights), decoder = new Decoder(read), { pieces } = read.facts;
  if (pieces) return { decoder, tokenizer: new Words(pieces.split("|")) };
  const told = model.get("_tokenizer") ?? new TextDecoder().decode(await fetched("tokenizer.json"));
  return { decoder, tokenizer: new Tokenizer(JSON.parse(told)) };
}

export const offer = (model, what) => `<div class="tfm-controls tfm-ask"${model.get("name") ? "" : " hidden"}><button type="button">load the model (${model.get("size")})</button> <span role="status">${what}</span></div>`;

export function offered(el, model, begin) {      // nothing is loaded before the button is pressed; what needs the model has the class tfm-live
  const ask = el.querySelector(".tfm-ask"), button = ask.querySelector("button"), status = ask.querySelector("[role=status]");
  button.onclick = async () => {
    button.disabled = true;
    status.textContent = "loading …";
    let found;
    try { found = await load(model); } catch (error) {
      status.textContent = `The model could not be loaded (${error.message}).`;
      button.disabled = false;
      return;
    }
    ask.hidden = true;
    el.querySelectorAll(".tfm-live").forEach(part => { part.hidden = false; });
    begin(found);
  };
}

export function reader(decoder) {                // reads texts with a cache, and counts what has been read, and what would have been without one
  const cache = decoder.newCache(), steps = [], known = [], count = { cached: 0, whole: 0 };
  return { count, steps, read(ids) {
    let same = 0;
    while (same < ids.length && ids[same] === known[same]) same++;
    for (const layer of cache) layer.k.length = layer.v.length = same;
    known.length = steps.length = same;
    for (const id of ids.slice(same)) { steps.push(decoder.read(id, cache)); known.push(id); }
    count.cached += ids.length - same;
    if (ids.length > same) count.whole += ids.length;
    return steps.at(-1);
  } };
}

export function* writing(decoder, ids, keep) {   // greedy tokens without end; for each, what its pass has processed and how long that took
  const text = [...ids];
  let cache = decoder.newCache();
  for (;;) {
    const start = performance.now();
    if (!keep) cache = decoder.newCache();       // that is all: without a cache, every pass begins with an empty one
    let processed = 0, last;
    for (const id of text.slice(cache[0].k.length)) { last = decoder.read(id, cache).logits; processed++; }
    text.push(last.indexOf(Math.max(...last)));
    yield { id: text.at(-1), processed, ms: performance.now() - start };
  }
}
