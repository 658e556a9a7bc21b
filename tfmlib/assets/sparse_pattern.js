// A causal pattern that can be drawn, and the layers until the chosen token depends on each earlier one, as tfmlib.sparse.layers_needed counts them.
// State: pairs (T × T, 1 where the query of a row attends to the key of a column), token (whose reach is shown), presets (name → pairs).

export function layers(pairs) {                     // for each output (row) and input (column) the least number of layers, -1: never
  const n = pairs.length, needed = pairs.map((_, i) => pairs.map((_, j) => (i === j ? 0 : -1)));
  for (let depth = 1, more = true; more; depth++) {
    more = false;
    const before = needed.map(row => [...row]);
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++)
      if (before[i][j] < 0 && pairs[i].some((on, k) => on && before[k][j] >= 0)) { needed[i][j] = depth; more = true; }
  }
  return needed;
}

export function depth(pairs) {                      // layers until every token depends on all before it, -1: never
  const found = layers(pairs).flatMap((row, i) => row.slice(0, i + 1));
  return found.some(n => n < 0) ? -1 : Math.max(...found);
}

function render({ model, el }) {
  const n = model.get("pairs").length, start = JSON.stringify([model.get("pairs"), model.get("token")]), names = Object.keys(model.get("presets"));
  el.innerHTML = `
    <div class="tfm-controls"><label class="tfm-control">pattern <select><option value="">drawn</option>${names.map(name => `<option>${name}</option>`).join("")}</select></label>
      <label class="tfm-control tfm-wide">token <span class="tfm-value" aria-hidden="true"></span><input type="range" min="0" max="${n - 1}" step="1"></label>
      <button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-pattern" role="grid" aria-label="pairs of queries (rows) and keys (columns); arrow keys move, space changes a pair">
    ${[...Array(n).keys()].map(i => `<div role="row" class="tfm-pattern-row">${[...Array(n).keys()].map(j => j > i ? `<span role="gridcell" class="tfm-cell tfm-future" aria-disabled="true" aria-label="query ${i}, key ${j}: in the future"></span>` :
      `<button type="button" role="gridcell" class="tfm-cell" data-i="${i}" data-j="${j}" tabindex="-1"></button>`).join("")}</div>`).join("")}
    <div role="row" class="tfm-pattern-row tfm-needed">${[...Array(n).keys()].map(j => `<span role="gridcell" class="tfm-cell" data-layer="${j}"></span>`).join("")}</div></div>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), cell = (i, j) => $(`[data-i="${i}"][data-j="${j}"]`), at = [n - 1, 0];
  const put = values => { for (const [key, value] of Object.entries(values)) model.set(key, value); model.save_changes(); };
  function toggle(i, j) {
    const pairs = model.get("pairs").map(row => [...row]);
    pairs[i][j] = pairs[i][j] ? 0 : 1;
    put({ pairs });
  }
  function go(i, j) {
    cell(...at).tabIndex = -1;
    at[0] = Math.max(0, Math.min(n - 1, i));
    at[1] = Math.max(0, Math.min(at[0], j));
    cell(...at).tabIndex = 0;
    cell(...at).focus();
  }
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  el.querySelectorAll("button[data-i]").forEach(button => {
    const i = Number(button.dataset.i), j = Number(button.dataset.j);
    button.onclick = () => { cell(...at).tabIndex = -1; [at[0], at[1]] = [i, j]; button.tabIndex = 0; toggle(i, j); };
    button.onkeydown = event => {
      const move = moves[event.key];
      if (move) { event.preventDefault(); go(i + move[0], j + move[1]); }
    };
  });
  cell(...at).tabIndex = 0;

  function draw() {
    const pairs = model.get("pairs"), token = model.get("token"), needed = layers(pairs)[token], count = pairs.flat().filter(Boolean).length, whole = depth(pairs);
    el.querySelectorAll("button[data-i]").forEach(button => {
      const { i, j } = button.dataset, on = Boolean(pairs[i][j]);
      button.classList.toggle("tfm-on", on);
      button.classList.toggle("tfm-of-token", Number(i) === token);
      button.textContent = on ? "●" : "";
      button.setAttribute("aria-label", `query ${i}, key ${j}: ${on ? "attends" : "does not attend"}`);
    });
    el.querySelectorAll("[data-layer]").forEach(shown => {
      const j = Number(shown.dataset.layer), said = j > token ? "" : needed[j] < 0 ? "–" : String(needed[j]);
      shown.textContent = said;
      shown.setAttribute("aria-label", j > token ? `token ${j}: after token ${token}` : needed[j] < 0 ? `token ${j}: never reached` : `token ${j}: after ${needed[j]} layers`);
    });
    $("select").value = names.find(name => JSON.stringify(model.get("presets")[name]) === JSON.stringify(pairs)) ?? "";
    $("input").value = token;
    $("label .tfm-value").textContent = token;
    const most = Math.max(...needed.slice(0, token + 1)), lost = needed.slice(0, token + 1).filter(x => x < 0).length;
    const all = whole < 0 ? "some are never connected" : `all tokens are connected after ${whole}`;
    $(".tfm-readout").textContent = `${count} of ${n * (n + 1) / 2} pairs. ${lost ? `Token ${token} never depends on ${lost} of the tokens before it` : `After ${most} layer${most === 1 ? "" : "s"}, token ${token} depends on all tokens before it`}; ${all}.`;
  }
  $("select").onchange = () => { const name = $("select").value; if (name) put({ pairs: model.get("presets")[name] }); else draw(); };
  $("input").oninput = () => put({ token: Number($("input").value) });
  $(".tfm-reset").onclick = () => { const [pairs, token] = JSON.parse(start); put({ pairs, token }); };
  const watched = ["pairs", "token"].map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
