// A pool of blocks that sequences fill, share and free, as tfmlib.paged_cache.BlockPool and BlockTable do.
// State: n_blocks, block_size, prompt (tokens of a new sequence), tables (blocks of each sequence, in order), lengths (its tokens), said.
const MOST = 8;                                     // sequences
const name = n => String.fromCharCode(65 + n), many = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

export function uses(tables, n) {                   // how many sequences use each block
  return [...Array(n).keys()].map(b => tables.filter(table => table.includes(b)).length);
}

export function reserve(state, i, end) {            // the state after sequence i has grown to `end` tokens, or nothing if there are too few blocks
  const tables = state.tables.map(table => [...table]), lengths = [...state.lengths], size = state.block_size, copied = [], fresh = [];
  for (let at = Math.floor(lengths[i] / size); at < Math.ceil(end / size); at++) {
    const now = uses(tables, state.n_blocks), free = now.indexOf(0), shared = at < tables[i].length && now[tables[i][at]] > 1;
    if (at < tables[i].length && !shared) continue;
    if (free < 0) return null;
    (shared ? copied : fresh).push(shared ? [tables[i][at], free] : free);
    tables[i][at] = free;
  }
  lengths[i] = end;
  return { tables, lengths, copied, fresh };
}

function render({ model, el }) {
  const keys = ["tables", "lengths", "said", "prompt"], start = JSON.stringify(keys.map(key => [key, model.get(key)]));
  const n = model.get("n_blocks"), size = model.get("block_size");
  el.innerHTML = `
    <div class="tfm-controls"><label class="tfm-control tfm-wide">tokens of a new sequence <span class="tfm-value" aria-hidden="true"></span><input type="range" min="1" max="16" step="1"></label></div>
    <div class="tfm-controls"><button type="button" class="tfm-start">begin a new sequence</button><button type="button" class="tfm-reset">reset</button></div>
    <p class="tfm-pool-name">pool: each block and its users</p><ol class="tfm-chips tfm-pool" aria-label="blocks of the pool"></ol>
    <div class="tfm-rows"></div>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), state = () => ({ n_blocks: n, block_size: size, tables: model.get("tables"), lengths: model.get("lengths") });
  const put = values => { for (const [key, value] of Object.entries(values)) model.set(key, value); model.save_changes(); };

  function grow(from, i, end, what) {
    const made = reserve(from, i, end);
    if (!made) return put({ said: "No block is free: end a sequence first." });
    const copy = made.copied.map(([a, b]) => `block ${a} was shared, so ${name(i)} now writes to its copy, block ${b}`), took = made.fresh.length ? [`${name(i)} took ${many(made.fresh.length, "free block")}`] : [];
    put({ tables: made.tables, lengths: made.lengths, said: `${what}: ${[...copy, ...took].join("; ") || "there was room in its last block"}.` });
  }
  const steps = {
    write: i => grow(state(), i, model.get("lengths")[i] + 1, `${name(i)} wrote a token`),
    fork: i => {
      if (model.get("tables").length >= MOST) return put({ said: `This figure has room for ${MOST} sequences.` });
      put({ tables: [...model.get("tables"), [...model.get("tables")[i]]], lengths: [...model.get("lengths"), model.get("lengths")[i]],
        said: `${name(model.get("tables").length)} has the same tokens as ${name(i)}, in the same blocks: no block was taken.` });
    },
    end: i => {
      const before = uses(model.get("tables"), n).filter(u => u === 0).length, tables = model.get("tables").filter((_, k) => k !== i);
      const freed = uses(tables, n).filter(u => u === 0).length - before;
      put({ tables, lengths: model.get("lengths").filter((_, k) => k !== i), said: `A sequence ended: ${many(freed, "block")} became free${tables.length > i ? "; the sequences after it moved up by a letter" : ""}.` });
    },
  };

  function draw() {
    const { tables, lengths } = state(), now = uses(tables, n), free = now.filter(u => u === 0).length, focus = [document.activeElement?.dataset?.step, document.activeElement?.dataset?.of];
    $("ol").innerHTML = now.map((u, b) => `<li class="tfm-chip${u > 1 ? " tfm-new" : u ? "" : " tfm-idle"}" data-uses="${u}">${b}: ${tables.map((t, i) => t.includes(b) ? name(i) : "").join("") || "free"}</li>`).join("");
    $(".tfm-rows").innerHTML = tables.map((table, i) => `<div class="tfm-controls"><span class="tfm-table-of">${name(i)}: ${many(lengths[i], "token")}, block table ${table.join(", ")}</span><span class="tfm-buttons" role="group" aria-label="steps of ${name(i)}">${Object.keys(steps).map(step =>
      `<button type="button" data-step="${step}" data-of="${i}" aria-label="${step} ${name(i)}">${step}</button>`).join("")}</span></div>`).join("");
    el.querySelectorAll("[data-step]").forEach(button => { button.onclick = () => steps[button.dataset.step](Number(button.dataset.of)); });
    if (focus[0]) el.querySelector(`[data-step="${focus[0]}"][data-of="${Math.min(Number(focus[1]), tables.length - 1)}"]`)?.focus();
    const tokens = lengths.reduce((a, b) => a + b, 0), reserved = n - free;
    $("input").value = model.get("prompt");
    $("label .tfm-value").textContent = model.get("prompt");
    $(".tfm-start").disabled = tables.length >= MOST;
    $(".tfm-readout").textContent = `${model.get("said")} ${many(reserved, "block")} in use, ${free} free; ${many(tokens, "token")} of ${many(tables.length, "sequence")} in room for ${reserved * size}.`.trim();
  }

  $(".tfm-start").onclick = () => {
    const from = state(), i = from.tables.length, prompt = model.get("prompt");
    grow({ ...from, tables: [...from.tables, []], lengths: [...from.lengths, 0] }, i, prompt, `${name(i)} began with ${many(prompt, "token")}`);
  };
  $("input").oninput = () => put({ prompt: Number($("input").value) });
  $(".tfm-reset").onclick = () => put(Object.fromEntries(JSON.parse(start)));
  const watched = keys.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
