// What tests/test_live.py asks of the model in the page: one JSON line in, one JSON line out.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Decoder, readTensors } from "../tfmlib/assets/live/decoder.js";
import { Tokenizer } from "../tfmlib/assets/live/tokenizer.js";

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
