// What a model costs. State: names and shapes (of published models), machine ([10¹² operations a second, 10¹² bytes a second, GB of memory]),
// chosen (a model), sizes (its shape, which the reader may change), width (bytes of a number), batch, context, devices (powers of two).
const FIELDS = [["n_layers", "layers L"], ["d_model", "width C"], ["n_heads", "query heads H"], ["n_kv_heads", "key–value heads G"], ["head_dim", "head width D"],
  ["d_ff", "feed-forward width F"], ["vocab_size", "vocabulary V"]];
const SLIDERS = [["batch", "sequences", 0, 10], ["context", "tokens per sequence", 0, 20], ["devices", "devices", 0, 14]];

function matrices(s) {                               // [inputs, outputs, stored, used]: tfmlib.accounting.weight_matrices
  const { vocab_size: V, d_model: C, n_layers: L, n_heads: H, n_kv_heads: G, head_dim: D, d_ff: F } = s, up = 1 + s.gated, all = [[V, C, +s.embedding, 0]];
  if (s.latent) {
    const [q, kv, r, W] = s.latent;
    all.push([C, q, L, L], [q, H * D, L, L], [C, kv + r, L, L], [kv, H * (D - r + W), L, L], [H * W, C, L, L]);
  } else all.push([C, H * D, L, L], [C, G * D, L, L], [C, G * D, L, L], [H * D, C, L, L]);
  if (s.experts) {
    const [E, k, shared, dense, wide] = s.experts, n = L - dense, m = shared * n;
    all.push([C, E, n, n], [C, F, up * n * E, up * n * k], [F, C, n * E, n * k], [C, F, up * m, up * m], [F, C, m, m], [C, wide, up * dense, up * dense], [wide, C, dense, dense]);
  } else all.push([C, F, up * L, up * L], [F, C, L, L]);
  return [...all, [C, V, +(s.head && !s.tied), +s.head]];
}

const sum = (list, f) => list.reduce((total, x) => total + f(x), 0);

export function fault(s) {                          // why no model has these sizes, or nothing: tfmlib.accounting.check_shape
  const { n_layers: L, n_heads: H, n_kv_heads: G, head_dim: D, latent, experts } = s;
  return H % G ? `${G} key–value heads cannot serve ${H} query heads equally: choose a divisor of ${H}.`
    : latent && latent[2] > D ? `Of the ${D} features of a head, ${latent[2]} cannot have RoPE: choose a head width of at least ${latent[2]}.`
    : experts && experts[3] > L ? `Its first ${experts[3]} layers have no experts: choose at least ${experts[3]} layers.` : "";
}

export function costs(s, B, S, width, devices, [peak, bandwidth]) {      // the same numbers, under the same names, as tfmlib.accounting.costs
  const { vocab_size: V, d_model: C, n_layers: L, n_heads: H, n_kv_heads: G, head_dim: D, d_ff: F } = s, all = matrices(s), plain = s.plain_blocks && s.head && !s.experts && !s.latent;
  const total = sum(all, ([i, o, n]) => i * o * n) + s.vectors, N = sum(all, ([i, o, , n]) => i * o * n);
  const active = total - sum(all, ([i, o, n, k]) => k > 0 && k < n ? i * o * (n - k) : 0);
  const forward = (T, keys, causal) => {
    const [, kv, r, W] = s.latent || [], pair = !s.latent ? 2 * D : keys > T ? 2 * kv + r : D + W;
    return 2 * B * (T * N + L * H * (causal ? T * keys - T * (T - 1) / 2 : T * keys) * pair);
  };
  const read = tokens => sum(all, ([i, o, n, k]) => { const there = Math.max(n, k); return there ? i * o * there * (1 - (1 - k / there) ** tokens) : 0; });
  const cache = (s.latent ? L * (s.latent[1] + s.latent[2]) : 2 * L * G * D) * B * S * width, late = (ops, moved) => Math.max(ops / peak, moved / bandwidth) / devices;
  const kept = again => {
    const norm = s.layer_norm ? 2 * C + 2 : 3 * C + 1, block = 2 * norm + (2 * H + 2 * G) * D + H + (2 + 2 * s.gated) * F, one = B * S * block;
    return plain ? width * ((again ? L * B * S * C + one : L * one) + 2 * s.rotary * S * D + B * S * (norm + V + 1)) / devices : null;
  };
  const ops = forward(1, S, false), moved = width * read(B) + cache, training = 3 * forward(S, S, false), decode = late(ops, moved);
  return {
    total, active, N, "training operations": training, "training seconds": training / peak / devices, state: 16 * total / devices, kept: kept(false), recomputed: kept(true),
    weights: width * total / devices, cache: cache / devices, "prefill seconds": late(forward(S, S, true) - 2 * B * (S - 1) * V * C * s.head, width * read(B * S) + cache), "decode seconds": decode,
    "tokens a second": B / decode, intensity: ops / moved };
}

export function amount(x, unit = "", prefixes = ",k,M,G,T,P") {            // tfmlib.accounting.amount
  if (x === null) return "–";
  const rounded = Number(x.toPrecision(3)), all = prefixes.split(","), at = Math.min(Math.floor((rounded.toFixed(0).length - 1) / 3), all.length - 1);
  return `${(rounded / 1000 ** at).toLocaleString("en", { maximumSignificantDigits: 4 })} ${all[at]}${unit}`.trim();
}

const BARS = [["training", "state", "kept"], ["recomputing", "state", "recomputed"], ["generation", "weights", "cache"]];   // tfmlib.accounting.MEMORY_BARS

function bars(c, room) {                             // memory on each device, and a line for the memory that there is: tfmlib.accounting.memory_bars
  const sums = BARS.map(([, a, b]) => c[a] + (c[b] || 0)), unit = 290 / Math.max(1.15 * room, ...sums), at = 84 + unit * room;
  return BARS.map(([name, a, b], i) => {
    const y = 26 + 30 * i, first = unit * c[a], second = unit * (c[b] || 0);
    return `<text x="76" y="${y + 14}" text-anchor="end">${name}</text><rect x="84" y="${y}" width="${first}" height="20" style="fill:var(--tfm-2)" fill-opacity=".6"/>
      <rect x="${84 + first}" y="${y}" width="${second}" height="20" style="fill:var(--tfm-1)" fill-opacity=".6"/><text x="${90 + first + second}" y="${y + 14}">${amount(c[b] === null ? null : sums[i], "B")}</text>`;
  }).join("") + `<path d="M${at} 20V112" style="stroke:var(--tfm-k)" stroke-width="2"/><text x="${at}" y="14" text-anchor="middle" style="fill:var(--tfm-k)">${room / 1e9} GB</text>`;
}

function render({ model, el }) {
  const names = model.get("names"), shapes = model.get("shapes"), keys = ["chosen", "sizes", "width", "batch", "context", "devices"];
  const start = JSON.stringify(keys.map(key => [key, model.get(key)])), [peak, bandwidth, room] = model.get("machine");
  const put = (key, value) => { model.set(key, value); model.save_changes(); };
  const bytes = x => amount(x, "B"), time = x => amount(1e9 * x, "s", "n,µ,m,"), count = x => amount(x, "", ",thousand,million,billion,· 10¹²,· 10¹⁵,· 10¹⁸");
  el.innerHTML = `
    <div class="tfm-controls"><label class="tfm-control">model <select class="tfm-model">${names.map((n, i) => `<option value="${i}">${n}</option>`).join("")}</select></label>
      <label class="tfm-control">bytes per number <select class="tfm-width"><option>4</option><option>2</option><option>1</option></select></label>
      <label class="tfm-control"><input type="checkbox" class="tfm-tied"> output matrix tied</label>
      <button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-duo">${SLIDERS.map(([, name, low, high]) => `<label class="tfm-control">${name} <span class="tfm-value" aria-hidden="true"></span><input type="range" min="${low}" max="${high}" step="1"></label>`).join("")}</div>
    <div class="tfm-controls">${FIELDS.map(([key, name]) => `<label class="tfm-control">${name} <input type="number" min="1" step="1" data-of="${key}"></label>`).join("")}</div>
    <svg class="tfm-memory" viewBox="0 0 490 116" style="display:block;width:100%;max-width:640px;margin:.4rem auto" role="img" fill="currentColor" font-size="13"></svg>
    <table class="tfm-table tfm-bill"><thead><tr><th scope="col">quantity</th><th scope="col">amount</th></tr></thead><tbody></tbody></table>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), sliders = [...el.querySelectorAll("[type=range]")], fields = [...el.querySelectorAll("[type=number]")];

  function draw() {
    const s = model.get("sizes"), width = model.get("width"), [B, S, n] = SLIDERS.map(([key]) => 2 ** model.get(key)), wrong = fault(s);
    $(".tfm-model").value = model.get("chosen"); $(".tfm-width").value = width; $(".tfm-tied").checked = s.tied;
    SLIDERS.forEach(([key], i) => {
      const said = (2 ** model.get(key)).toLocaleString("en");
      sliders[i].value = model.get(key); sliders[i].setAttribute("aria-valuetext", said);
      sliders[i].closest("label").querySelector(".tfm-value").textContent = said;
    });
    fields.forEach(f => { if (f !== document.activeElement) f.value = s[f.dataset.of]; });
    if (wrong) {
      el.querySelectorAll("td").forEach(cell => { cell.textContent = "–"; });
      $(".tfm-memory").innerHTML = "";
      $(".tfm-readout").textContent = wrong;
      return;
    }
    const c = costs(s, B, S, width, n, [peak * 1e12, bandwidth * 1e12]);
    const each = n > 1 ? ", on each device" : "", rows = [
      ["parameters", count(c.total)], ["used weights, N", count(c.N)], ["training: operations per step", count(c["training operations"])],
      ["training: least time per step", time(c["training seconds"])], [`training: weights, gradients, Adam's means${each}`, bytes(c.state)],
      [`training: activations, if all are kept in that width${each}`, bytes(c.kept)], [`training: the same with recomputation${each}`, bytes(c.recomputed)], [`generation: weights${each}`, bytes(c.weights)],
      [`generation: KV cache${each}`, bytes(c.cache)], ["generation: least time for the prefill", time(c["prefill seconds"])], ["generation: least time per step", time(c["decode seconds"])],
      ["generation: most tokens per second", count(c["tokens a second"])]];
    $(".tfm-memory").innerHTML = bars(c, room * 1e9);
    $(".tfm-memory").setAttribute("aria-label", `Memory on each device, of ${room} GB: ` + BARS.map(([name, a, b]) => `${name} ${amount(c[b] === null ? null : c[a] + c[b], "B")}`).join(", "));
    $("tbody").innerHTML = rows.map(([name, value]) => `<tr><th scope="row">${name}</th><td>${value}</td></tr>`).join("");
    const fits = c.weights + c.cache <= room * 1e9, turn = peak / bandwidth;
    $(".tfm-readout").textContent = `A decoding step does ${c.intensity.toPrecision(3)} operations per byte; this device needs ${turn.toFixed(0)} to be compute-bound, so the step is ${c.intensity < turn ? "memory-bound" : "compute-bound"}. `
      + `Weights and cache ${fits ? "fit" : "do not fit"} into ${room} GB${n > 1 ? " of memory on each device" : " of memory"}.`;
  }

  $(".tfm-model").onchange = e => { put("chosen", Number(e.target.value)); put("sizes", shapes[Number(e.target.value)]); };
  $(".tfm-width").onchange = e => put("width", Number(e.target.value));
  $(".tfm-tied").onchange = e => put("sizes", { ...model.get("sizes"), tied: e.target.checked });
  SLIDERS.forEach(([key], i) => { sliders[i].oninput = () => put(key, Number(sliders[i].value)); });
  fields.forEach(f => {
    f.oninput = () => { const value = Number(f.value); if (Number.isInteger(value) && value > 0) put("sizes", { ...model.get("sizes"), [f.dataset.of]: value }); };
    f.onblur = draw;
  });
  $(".tfm-reset").onclick = () => JSON.parse(start).forEach(([key, value]) => put(key, value));
  const watched = keys.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
