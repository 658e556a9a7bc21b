// The book's decoders (chapter 10: RMSNorm, RoPE, grouped-query attention, SwiGLU or no feed-forward layer, tied embeddings)
// in plain JavaScript, one token at a time, with a KV cache (chapter 16). Numbers are those of PyTorch up to rounding.

const EPS = 1e-5, BASE = 10_000;                // of RMSNorm and of RoPE, as in tfmlib.block and tfmlib.positions

export function half(bits) {                    // the number that the 16 bits of a float16 stand for
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
}

export function readTensors(buffer) {           // a safetensors file -> its tensors, and what was noted with them
  const view = new DataView(buffer), size = Number(view.getBigUint64(0, true));
  const { __metadata__: { facts = "{}" } = {}, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(entries)) {
    const bytes = buffer.slice(8 + size + start, 8 + size + end);
    if (dtype === "F32") tensors[name] = { shape, data: new Float32Array(bytes) };
    else if (dtype === "F16") tensors[name] = { shape, data: Float32Array.from(new Uint16Array(bytes), half) };
    else if (dtype === "I8") tensors[name] = { shape, data: Float32Array.from(new Int8Array(bytes)) };
    else throw new Error(`${name}: ${dtype}; expected F32, F16 or I8`);
  }
  for (const [name, { shape: [, columns], data }] of Object.entries(tensors)) {     // whole numbers, and what each row of them is multiplied by
    const scale = tensors[`${name}.scale`];
    if (scale) for (let i = 0; i < data.length; i++) data[i] *= scale.data[Math.floor(i / columns)];
  }
  return { tensors, facts: JSON.parse(facts) };
}

function matvec({ shape: [rows, columns], data }, x) {  // (R, C), (C) -> (R)
  const out = new Float32Array(rows);
  for (let r = 0, i = 0; r < rows; r++) {
    let sum = 0;
    for (let c = 0; c < columns; c++) sum += data[i++] * x[c];
    out[r] = sum;
  }
  return out;
}

function rmsNorm({ data }, x) {
  let squares = 0;
  for (const value of x) squares += value * value;
  const scale = 1 / Math.sqrt(squares / x.length + EPS);
  return x.map((value, i) => value * scale * data[i]);
}

function rotate(x, position, width) {           // in every head, the pairs (i, i + width / 2) by position · BASE^(-2i / width)
  const pairs = width / 2;
  for (let i = 0; i < pairs; i++) {
    const angle = position * BASE ** (-2 * i / width), cos = Math.cos(angle), sin = Math.sin(angle);
    for (let at = i; at < x.length; at += width) {
      const a = x[at], b = x[at + pairs];
      x[at] = a * cos - b * sin;
      x[at + pairs] = a * sin + b * cos;
    }
  }
  return x;
}

export function softmax(scores) {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity), exps = Array.from(scores, s => Math.exp(s - most));
  const sum = exps.reduce((a, b) => a + b, 0);
  return exps.map(e => e / sum);
}

const add = (x, y) => x.map((value, i) => value + y[i]);
const swish = value => value / (1 + Math.exp(-value));
const FIXED = { kind: "decoder", norm: "rmsnorm", norm_position: "pre", positions: "rotary", ffn_bias: false, embedding_scale: 1 };

export class Decoder {
  constructor({ tensors, facts }) {
    const config = JSON.parse(facts.config ?? "{}");
    for (const [key, value] of Object.entries(FIXED)) if (config[key] !== value) throw new Error(`${key}: ${config[key]}; expected ${value}`);
    if (!["swiglu", "none"].includes(config.ffn)) throw new Error(`ffn: ${config.ffn}; expected swiglu or none`);
    this.config = config;
    this.tensors = tensors;
    this.width = config.d_model / config.n_heads;                        // of a head
    this.groups = config.n_kv_heads ?? config.n_heads;
  }

  newCache() { return Array.from({ length: this.config.n_layers }, () => ({ k: [], v: [] })); }

  attend(query, { k, v }) {                     // one query of every head: the mixed values and the weights (H, S)
    const { width, groups, config: { n_heads: heads } } = this, mixed = new Float32Array(heads * width), weights = [];
    for (let h = 0; h < heads; h++) {
      const from = h * width, group = Math.floor(h * groups / heads) * width;
      const scores = k.map(key => {
        let sum = 0;
        for (let i = 0; i < width; i++) sum += query[from + i] * key[group + i];
        return sum / Math.sqrt(width);
      });
      weights.push(softmax(scores));
      v.forEach((value, s) => { for (let i = 0; i < width; i++) mixed[from + i] += weights[h][s] * value[group + i]; });
    }
    return { mixed, weights };
  }

  read(id, cache) {                             // one more token: the logits of the next, and the weights of its queries (L, H, S)
    const { tensors, config } = this, { shape: [size, channels], data } = tensors["embedding.weight"], position = cache[0].k.length;
    if (!Number.isInteger(id) || id < 0 || id >= size) throw new RangeError(`id: ${id}; expected 0 to ${size - 1}`);
    if (position >= config.max_len) throw new RangeError(`cache: ${position} tokens; expected fewer than ${config.max_len}`);
    let x = data.slice(id * channels, (id + 1) * channels);
    const shown = cache.map((layer, n) => {
      const of = name => tensors[`stack.blocks.${n}.${name}.weight`], y = rmsNorm(of("attention.norm"), x);
      const [query, key, value] = ["q_proj", "k_proj", "v_proj"].map(name => matvec(of(`attention.inner.${name}`), y));
      layer.k.push(rotate(key, position, this.width));
      layer.v.push(value);
      const { mixed, weights } = this.attend(rotate(query, position, this.width), layer);
      x = add(x, matvec(of("attention.inner.o_proj"), mixed));
      if (config.ffn === "swiglu") {
        const z = rmsNorm(of("feed_forward.norm"), x), up = matvec(of("feed_forward.inner.up"), z);
        const gated = matvec(of("feed_forward.inner.gate"), z).map((value, i) => swish(value) * up[i]);
        x = add(x, matvec(of("feed_forward.inner.down"), gated));
      }
      return weights;
    });
    return { logits: matvec(tensors["embedding.weight"], rmsNorm(tensors["stack.norm.weight"], x)), weights: shown };
  }
}
