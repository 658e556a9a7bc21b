// The book's tokenizer (chapter 3): pieces by a pattern, bytes, and merges in the order in which they were learned; and the tour's, words and marks.

const VISIBLE = [[33, 126], [161, 172], [174, 255]].flatMap(([a, b]) => Array.from({ length: b - a + 1 }, (_, i) => a + i));
const BYTES = [...VISIBLE, ...Array.from({ length: 256 }, (_, b) => b).filter(b => !VISIBLE.includes(b))];     // id -> byte
const LETTERS = BYTES.map((b, i) => String.fromCodePoint(i < VISIBLE.length ? b : 256 + i - VISIBLE.length));  // id -> how the file writes it
const SPACE = "\\t-\\r\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";              // \s, which differs between languages

export class Tokenizer {
  constructor({ format, version, pattern, merges, specials }) {           // the content of tokenizer.json
    if (format !== "tfmlib tokenizer" || version !== 1) throw new Error(`format: ${format} ${version}; expected tfmlib tokenizer 1`);
    const written = pattern.replace(/\[\^\\s/g, `[^${SPACE}`).replace(/\\s/g, `[${SPACE}]`).replace(/\\S/g, `[^${SPACE}]`);
    this.pattern = new RegExp(written, "gu");
    this.vocab = BYTES.map(b => [b]);                                      // id -> bytes
    const ids = new Map(LETTERS.map((letter, id) => [letter, id]));        // as the file writes it -> id
    this.ranks = new Map();                                                // pair -> [number of the merge, new id]
    merges.forEach((merge, rank) => {
      const [a, b] = merge.split(" ");
      if (!ids.has(a + b)) ids.set(a + b, this.vocab.push([...this.vocab[ids.get(a)], ...this.vocab[ids.get(b)]]) - 1);
      this.ranks.set(this.pair(ids.get(a), ids.get(b)), [rank, ids.get(a + b)]);
    });
    this.specials = specials;
    this.size = this.vocab.length + specials.length;
  }

  pair(a, b) { return a * 2 ** 20 + b; }

  merged(ids) {                                 // the earliest merge first, and of those the leftmost, until none is left
    for (;;) {
      let at = -1, best = [Infinity];
      for (let i = 0; i + 1 < ids.length; i++) {
        const merge = this.ranks.get(this.pair(ids[i], ids[i + 1]));
        if (merge && merge[0] < best[0]) { at = i; best = merge; }
      }
      if (at < 0) return ids;
      ids = [...ids.slice(0, at), best[1], ...ids.slice(at + 2)];
    }
  }

  encode(text) {                                // the ids of a text; special tokens are not looked for
    const pieces = text.match(this.pattern) ?? [], bytes = new TextEncoder();
    return pieces.flatMap(piece => this.merged(Array.from(bytes.encode(piece), b => BYTES.indexOf(b))));
  }

  bytes(id) { return id < this.vocab.length ? this.vocab[id] : [...new TextEncoder().encode(this.specials[id - this.vocab.length])]; }

  decode(ids) { return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(ids.flatMap(id => this.bytes(id)))); }

  printable(id) {                               // a token as printable text: white space is visible, bytes that form no character are numbers
    const bytes = this.bytes(id);
    try { return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes)).replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥"); }
    catch { return `⟨${bytes.map(b => b.toString(16).toUpperCase().padStart(2, "0")).join(" ")}⟩`; }
  }
}

export class Words {                            // each word with the space before it is a token, and each mark; there are no others than these
  constructor(tokens) {
    this.tokens = tokens;
    this.ids = new Map(tokens.map((token, id) => [token, id]));
    this.size = tokens.length;
  }

  split(text) { return text.match(/ ?[A-Za-z]+(?:'[a-z]+)?|[^A-Za-z]/gu) ?? []; }
  encode(text) { return this.split(text).filter(piece => this.ids.has(piece)).map(piece => this.ids.get(piece)); }
  unknown(text) { return [...new Set(this.split(text).filter(piece => !this.ids.has(piece)))]; }
  decode(ids) { return ids.map(id => this.tokens[id]).join(""); }
  printable(id) { return this.tokens[id].replaceAll(" ", "␣").replaceAll("\n", "⏎"); }
}
