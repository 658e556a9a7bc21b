// What tests/test_live.py asks of the model in the page: one JSON line in, one JSON line out.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Decoder, readTensors } from "../tfmlib/assets/live/decoder.js";
import { reader, writing } from "../tfmlib/assets/live/running.js";
import { Tokenizer, Words } from "../tfmlib/assets/live/tokenizer.js";

const loaded = new Map();
function decoder(file) {
  if (!loaded.has(file)) {
    const raw = readFileSync(file);
    loaded.set(file, new Decoder(readTensors(raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.length))));
  }
  return loaded.get(file);
}

const asked = {
  logits({ file, ids }) {                       // after each token, and the weights of each query
    const model = decoder(file), cache = model.newCache(), steps = ids.map(id => model.read(id, cache));
    return { logits: steps.map(s => [...s.logits]), weights: steps.map(s => s.weights) };
  },
  greedy({ file, ids, steps }) {
    const model = decoder(file), cache = model.newCache(), out = [...ids];
    let last;
    for (const id of ids) last = model.read(id, cache).logits;
    for (let n = 0; n < steps; n++) {
      out.push(last.indexOf(Math.max(...last)));
      if (n + 1 < steps) last = model.read(out.at(-1), cache).logits;
    }
    return out;
  },
  typed({ file, texts }) {                       // the weights of each text in turn, read by one reader, and what it has counted
    const one = reader(decoder(file));
    return texts.map(ids => { one.read(ids); return { weights: one.steps.map(s => s.weights), ...one.count }; });
  },
  written({ file, ids, steps, keep }) {
    const passes = writing(decoder(file), ids, keep), found = Array.from({ length: steps }, () => passes.next().value);
    return { ids: found.map(f => f.id), processed: found.map(f => f.processed), timed: found.every(f => f.ms >= 0) };
  },
  words({ file, texts }) {                       // of a model that has its tokens with it
    const raw = readFileSync(file), words = new Words(readTensors(raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.length)).facts.pieces.split("|"));
    return texts.map(text => { const ids = words.encode(text); return { ids, back: words.decode(ids), shown: ids.map(id => words.printable(id)), unknown: words.unknown(text), size: words.size }; });
  },
  encode({ file, texts }) {
    const tokenizer = new Tokenizer(JSON.parse(readFileSync(file, "utf-8")));
    return texts.map(text => { const ids = tokenizer.encode(text); return { ids, back: tokenizer.decode(ids), shown: ids.map(id => tokenizer.printable(id)), size: tokenizer.size }; });
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { what, ...told } = JSON.parse(line);
  let said;
  try { said = { said: asked[what](told) }; } catch (error) { said = { error: String(error) }; }
  console.log(JSON.stringify(said));
}
