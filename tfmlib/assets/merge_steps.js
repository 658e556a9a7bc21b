// A reader's text, cut into tokens by byte-pair merges and stepped through: single bytes, then merge by merge.
// State: text, merges (ids of the pairs, two numbers a merge, in the order learned), step (merges applied; -1: all).
const PATTERN = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const MOST = 300;                                // characters that a text may have

const visible = b => (b > 32 && b < 127) || (b > 160 && b !== 173);
const all = [...Array(256).keys()], BYTES = [...all.filter(visible), ...all.filter(b => !visible(b))];
const ID = Object.fromEntries(BYTES.map((b, id) => [b, id]));

function readMerges(merges) {                        // the bytes of each id; pair → [the number of the merge, the new id]
  const vocab = BYTES.map(b => [b]), ids = new Map(vocab.map((t, id) => [String(t), id])), ranks = new Map();
  for (let n = 0; 2 * n < merges.length; n++) {
    const [a, b] = merges.slice(2 * n, 2 * n + 2), token = [...vocab[a], ...vocab[b]];
    if (!ids.has(String(token))) ids.set(String(token), vocab.push(token) - 1);
    ranks.set(`${a} ${b}`, [n, ids.get(String(token))]);
  }
  return { vocab, ranks };
}

function steps(text, ranks) {                    // the text's pieces as single bytes, then after each merge that applies
  const wellFormed = text.toWellFormed ? text.toWellFormed() : text;
  let pieces = (wellFormed.match(PATTERN) ?? []).map(piece => [...new TextEncoder().encode(piece)].map(b => ID[b]));
  const made = [{ pieces }];
  for (;;) {
    let best = null;
    for (const ids of pieces) for (let i = 0; i + 1 < ids.length; i++) {
      const rank = ranks.get(`${ids[i]} ${ids[i + 1]}`);
      if (rank && (!best || rank[0] < best.rank[0])) best = { rank, pair: [ids[i], ids[i + 1]] };
    }
    if (!best) return made;
    const { rank: [n, id], pair } = best;
    let places = 0;
    pieces = pieces.map(ids => {
      const out = [];
      for (let i = 0; i < ids.length; i++) {
        const found = ids[i] === pair[0] && ids[i + 1] === pair[1];
        out.push(found ? id : ids[i]);
        if (found) { i++; places++; }
      }
      return out;
    });
    made.push({ pieces, n, id, pair, places });
  }
}

function shown(bytes) {                          // a token to look at
  try { return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes)).replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥"); }
  catch { return `⟨${bytes.map(b => b.toString(16).padStart(2, "0").toUpperCase()).join(" ")}⟩`; }
}

function render({ model, el }) {
  const { vocab, ranks } = readMerges(model.get("merges")), start = [model.get("text"), model.get("step")];
  el.innerHTML = `
    <label class="tfm-control tfm-wide">text <textarea class="tfm-text" rows="2" maxlength="${MOST}" spellcheck="false"></textarea></label>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">merges applied: <span class="tfm-value" aria-hidden="true"></span><input type="range" min="0" step="1"></label></div>
    <div class="tfm-controls"><span class="tfm-buttons" role="group" aria-label="step"><button type="button">◀ merge back</button><button type="button">next merge ▶</button></span>
      <button type="button" class="tfm-reset">reset</button></div>
    <p class="tfm-merge" aria-live="polite"></p>
    <ol class="tfm-chips" aria-label="tokens"></ol>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), area = $("textarea"), slider = $("input"), [back, next] = el.querySelectorAll(".tfm-buttons button");
  let made = [], of = null;

  function draw() {
    if (of !== model.get("text")) made = steps(of = model.get("text"), ranks);
    const last = made.length - 1, step = model.get("step"), at = step < 0 ? last : Math.min(step, last), now = made[at];
    if (area.value !== of) area.value = of;
    slider.max = last;
    slider.value = at;
    slider.disabled = last === 0;
    $(".tfm-control .tfm-value").textContent = `${at} of ${last}`;
    slider.setAttribute("aria-valuetext", `${at} of ${last} merges`);
    back.disabled = at === 0;
    next.disabled = at === last;
    const name = id => shown(vocab[id]);
    $(".tfm-merge").textContent = at === 0 ? "single bytes" : `merge ${now.n + 1} of the vocabulary: ${name(now.pair[0])} + ${name(now.pair[1])} → ${name(now.id)}, ${now.places === 1 ? "once" : `${now.places} times`} in this text`;
    $("ol").replaceChildren(...now.pieces.flatMap((ids, p) => ids.map((id, k) => {
      const chip = document.createElement("li");
      chip.className = `tfm-chip${k ? "" : " tfm-piece"}${id === now.id ? " tfm-new" : ""}`;
      chip.dataset.id = id;
      chip.title = `id ${id}`;
      chip.textContent = name(id);
      return chip;
    })));
    const tokens = now.pieces.reduce((sum, ids) => sum + ids.length, 0), bytes = new TextEncoder().encode(of).length;
    const many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
    $(".tfm-readout").textContent = `${many(bytes, "byte")} · ${many([...of].length, "character")} · ${many(now.pieces.length, "piece")} · ${many(tokens, "token")}${tokens ? `, ${(bytes / tokens).toFixed(2)} bytes per token` : ""}`;
  }

  const put = (...pairs) => { for (const [key, value] of pairs) model.set(key, value); model.save_changes(); };
  const goto = at => put(["step", at >= made.length - 1 ? -1 : Math.max(at, 0)]);
  const at = () => Number(slider.value);
  area.oninput = () => put(["step", -1], ["text", area.value]);
  slider.oninput = () => goto(at());
  back.onclick = () => goto(at() - 1);
  next.onclick = () => goto(at() + 1);
  $(".tfm-reset").onclick = () => put(["step", start[1]], ["text", start[0]]);
  const watched = ["change:text", "change:step"];
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
