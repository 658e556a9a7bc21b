// How the next token is sampled (chapter 10).
import { softmax } from "./decoder.js";

export function filtered(logits, { octaves, k, p, least }) {   // the same steps, in the same order, as tfmlib.decoders.SamplingConfig
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

export function* uniform(seed) {                               // mulberry32: numbers from 0 to 1 that belong to a seed
  let a = seed >>> 0;
  for (;;) {
    a = (a + 0x6D2B79F5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    yield ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }
}

export function sampled(shares, number) {        // the first token at which the shares, added up, exceed a number from 0 to 1
  const rest = number * shares.reduce((a, b) => a + b, 0);
  let sum = 0;
  return shares.findIndex(share => (sum += share) > rest);
}
