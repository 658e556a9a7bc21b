// The search: ranks what searchindex.js lists (extensions/search.py writes it) and shows it. Nothing else is fetched.
const search = (() => {                            // searchindex.js calls it, once
const KINDS = {                                    // as search.py lists them: its bonus, and what is said before the page's title
  page: [85, ""], name: [80, "defined in "], term: [75, "term, defined in "], section: [50, "section of "], depth: [50, "section of "],
  claim: [10, "claim in "], exercise: [5, "in "], back: [0, "section of "],
}, kinds = Object.keys(KINDS);
const SHOWN = 60;

const folded = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").replace(/\bsqrt(?![a-z])|\bsquare[ -]roots?\b/gi, " √ ");

function units(text) {                           // [[whole, parts]]: layer_norm, LayerNorm and layer-norm are the same
  return [...folded(text).matchAll(/[\p{L}\p{N}_√]+(?:[-‐–’'][\p{L}\p{N}_√]+)*/gu)].map(([name]) => {
    const apart = name.replace(/(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])/g, "_").replaceAll("√", "_√_");
    const parts = [...apart.matchAll(/[\p{L}\p{N}]+|√/gu)].map(([w]) => w.toLowerCase());
    return { whole: parts.join(""), parts };
  });
}
const words = (text) => units(text).flatMap(({ whole, parts }) => (parts.length > 1 && parts.length < 5 ? [...parts, whole] : parts));
const key = (text) => units(text).map((u) => u.whole).join("");
const stems = (word) => [word, ...["s", "es", "ed", "ing"].filter((end) => word.endsWith(end) && word.length - end.length > 3).map((end) => word.slice(0, -end.length))];

const slug = (title) => title.replace(/^Exercise: /, "").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^[-0-9]+|-+$/g, "");  // as search.py's

let book;                                        // what the index holds, made ready once
function read(index) {
  const entries = index.entries.map(([kind, page, place, title, line, ...also], number) => {
    const anchor = kinds[kind] === "name" ? `tfm-${title}` : place === 0 ? slug(title) : place;
    const spelt = [title, ...also].map((t) => t.replace(/^[\d.]+ · |^Exercise: |\s*\([^)]*\)$/g, ""));
    return { number, kind: kinds[kind], page: index.pages[page], anchor, title, line, also, spelt, keys: spelt.map(key), words: spelt.map((t) => words(t)) };
  });
  const vocabulary = index.words.split(" "), said = index.said.split(" ");
  book = { entries, common: new Set(index.common.split(" ")), spelt: [...new Set([...vocabulary, ...entries.flatMap((e) => e.words.flat())])], vocabulary, said: new Map(vocabulary.map((word, k) => [word, said[k]])) };
  show(new URLSearchParams(location.search).get("q") ?? "");
}

const DIGITS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
function numbers(text) {                         // to base 32; all digits but a number's last are from the second half
  const found = [];
  let n = 0;
  for (const letter of text) {
    const digit = DIGITS.indexOf(letter);
    n = 32 * n + digit % 32;
    if (digit < 32) { found.push(n); n = 0; }
  }
  return found;
}

function fit(word, other) {                      // how well a word of a query fits a word of the book, from 0 to 1
  if (word === other) return 1;
  if (word.length < 3) return 0;
  return stems(word).some((stem) => other === stem || other === `${stem}s`) ? 0.95 : stems(word).some((stem) => other.startsWith(stem)) ? 0.7 : 0;
}
const best = (word, among) => among.reduce((most, other) => Math.max(most, fit(word, other)), 0);
const needed = (parts) => (parts.some((p) => p.length > 1 || p === "√") ? parts.filter((p) => p.length > 1 || p === "√") : parts);
const inTitle = ({ whole, parts }, among) => Math.max(best(whole, among), 0.9 * Math.min(...needed(parts).map((p) => best(p, among))));

function texts(word) {                           // entry -> how much its text is about a word
  const found = new Map(), one = (other, part) => {
    const steps = numbers(book.said.get(other) ?? ""), rare = Math.log(1 + book.entries.length / (1 + steps.length));
    let at = 0;
    for (const step of steps) { at += Math.floor(step / 3); found.set(at, Math.max(found.get(at) ?? 0, part * rare * (1 + step % 3))); }
  };
  for (const other of book.vocabulary) { const part = fit(word, other); if (part) one(other, part); }
  return found;
}

function inText({ whole, parts }) {
  const found = texts(whole), each = parts.length > 1 ? needed(parts).map(texts) : [];
  for (const [entry, weight] of each[0] ?? []) if (each.every((one) => one.has(entry))) found.set(entry, Math.max(found.get(entry) ?? 0, 0.6 * weight));
  return found;
}

function apart(a, b, most) {                     // letters changed, added, left out or swapped with their neighbour; `most` + 1 where there are more
  if (Math.abs(a.length - b.length) > most) return most + 1;
  let before = [], row = [...Array(b.length + 1).keys()];
  for (let i = 1; i <= a.length; i++) {
    const last = row;
    row = [i];
    for (let j = 1; j <= b.length; j++) {
      row[j] = Math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] !== b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) row[j] = Math.min(row[j], before[j - 2] + 1);
    }
    if (Math.min(...row) > most) return most + 1;
    before = last;
  }
  return row[b.length];
}

function meant(query) {                          // without common words, and with words that the book does not know as it spells the nearest
  const all = units(query), telling = all.filter(({ whole }) => !book.common.has(whole));
  const how = (word) => numbers(book.said.get(word) ?? "").length;
  return (telling.length ? telling : all).map(({ whole, parts }) => {
    const known = (word) => book.spelt.some((other) => fit(word, other));
    if (whole.length < 4 || known(whole) || parts.length > 1 && parts.every(known)) return parts.length > 1 ? parts.join("_") : whole;
    const most = whole.length < 8 ? 1 : 2, near = book.spelt.map((other) => [apart(whole, other, most), other]).filter(([far]) => far <= most);
    return near.sort(([a, x], [b, y]) => a - b || how(y) - how(x))[0]?.[1] ?? whole;
  }).join(" ");
}

function results(query) {
  const asked = units(meant(query)), whole = key(query), said = asked.map(inText), found = [];
  const common = units(query).filter((unit) => book.common.has(unit.whole) && asked.every((other) => other.whole !== unit.whole));  // left out, but a title that has them all is meant
  if (!asked.length) return [];
  for (const entry of book.entries) {
    const practice = entry.page[0].includes("/practice/") ? 45 : 0, bench = /\/00_/.test(entry.page[0]) ? 5 : 0;
    const constant = entry.kind === "name" && entry.title === entry.title.toUpperCase() && entry.title !== query.trim() ? 20 : 0;  // rope is a term before it is ROPE
    const written = asked.map((_, k) => said[k].get(entry.number) ?? 0), text = written.reduce((a, b) => a + b, 0);
    let score = 0;
    entry.keys.forEach((own, k) => {
      const fits = asked.map((unit) => inTitle(unit, entry.words[k])), every = common.length > 0 && common.every((unit) => inTitle(unit, entry.words[k]) > 0);
      const many = asked.length + (every ? common.length : 0), part = many / Math.max(entry.words[k].length, many);
      if (own === whole) score = Math.max(score, entry.spelt[k] === query.trim() ? 1050 : 1000);
      else if (Math.min(...fits) > 0) score = Math.max(score, 500 * Math.min(...fits) + 200 * part + 80 * every * common.length);
      else if (asked.every((_, i) => fits[i] || written[i])) score = Math.max(score, 100 * fits.filter(Boolean).length / asked.length + 5 * text);
    });
    if (score) found.push({ entry, score: score + Math.min(text, 40) + KINDS[entry.kind][0] - practice - bench - constant });
  }
  return found.sort((a, b) => b.score - a.score || a.entry.number - b.entry.number).map(({ entry }) => entry);
}

function shown(entry) {
  const item = document.createElement("li"), link = document.createElement("a"), [page, chapter] = entry.page;
  link.href = `${page}.html${entry.anchor ? `#${encodeURIComponent(entry.anchor)}` : ""}`;
  link.append(entry.kind === "name" ? Object.assign(document.createElement("code"), { textContent: entry.title }) : [entry.title, ...entry.also].join(", "));
  const small = Object.assign(document.createElement("small"), { textContent: entry.kind === "page" ? "" : KINDS[entry.kind][1] + chapter });
  const line = Object.assign(document.createElement("p"), { textContent: entry.line });
  if (entry.kind === "claim" && entry.line.includes(". ")) {       // what is true comes first, and the common wording stands small
    line.textContent = `Commonly said: ${entry.title}`;
    link.textContent = entry.line[0].toUpperCase() + entry.line.slice(1);
  }
  item.className = `tfm-found-${entry.kind}`;
  item.append(link, small, line);
  return item;
}

function unknown(query) {                        // which words were taken for others
  const said = units(meant(query)).map((u) => u.whole), own = units(query).map((u) => u.whole), changed = said.filter((word) => !own.includes(word));
  return changed.length ? `, for ${changed.join(", ")}` : "";
}

function show(query) {
  const field = document.querySelector(".tfm-search-page input"), out = document.getElementById("search-results");
  field.value = query;
  if (!query.trim()) return;
  const found = results(query), list = document.createElement("ul"), said = document.createElement("p");
  const many = found.length > SHOWN ? `, of which the first ${SHOWN} are listed` : "";
  said.textContent = found.length ? `${found.length} ${found.length === 1 ? "result" : "results"}${many}${unknown(query)}` : "Nothing found. Try fewer or shorter words.";
  list.className = "search";
  list.append(...found.slice(0, SHOWN).map(shown));
  out.replaceChildren(said, list);
}

return Object.assign(read, { words, results, kinds });
})();
