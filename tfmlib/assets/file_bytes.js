// The bytes of a small file, and six numbers read from them. State: content (the bytes), head (how many stand before the data),
// kind ("BF16" or "F16"), start (the byte at which the reader begins).
const ACROSS = 13, CELL = 27, LEFT = 36, COUNT = 6;

export function number(low, high, kind) {           // two bytes, the lower first
  const bits = low + 256 * high;
  if (kind === "BF16") return new Float32Array(new Uint32Array([bits << 16]).buffer)[0];
  const sign = bits >> 15 ? -1 : 1, power = bits >> 10 & 31, part = bits & 1023;
  if (power === 31) return part ? NaN : sign * Infinity;
  return sign * (power ? 2 ** (power - 15) * (1 + part / 1024) : 2 ** -14 * part / 1024);
}

export function shown(x) {                           // 1.88, 0.0125, 9.2·10³, 5.3·10⁻³⁹
  if (!isFinite(x)) return Number.isNaN(x) ? "not a number" : x > 0 ? "∞" : "−∞";
  const size = Math.abs(x), minus = x < 0 ? "−" : "";
  if (size === 0) return "0";
  if (size >= 0.001 && size < 1000) return minus + Number(size.toPrecision(3));
  const [part, power] = size.toExponential(1).split("e");
  return `${minus}${part}·10${String(Number(power)).replace("-", "⁻").replace(/\d/g, d => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d])}`;
}

function render({ model, el }) {
  const content = model.get("content"), head = model.get("head"), keys = ["kind", "start"], first = keys.map(key => [key, model.get(key)]);
  const safe = s => s.replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  el.innerHTML = `
    <div class="tfm-controls"><span class="tfm-buttons" role="group" aria-label="data type"><button type="button" data-kind="BF16">BF16</button><button type="button" data-kind="F16">F16</button></span>
      <button type="button" class="tfm-reset">reset</button></div>
    <div class="tfm-controls"><label class="tfm-control tfm-wide">data read from byte <span class="tfm-value" aria-hidden="true"></span><input type="range" min="0" max="${head}" step="1"></label></div>
    <svg class="tfm-plot tfm-bytes" role="img" viewBox="0 0 ${LEFT + ACROSS * CELL + 3} ${Math.ceil(content.length / ACROSS) * CELL + 4}" font-size="12"></svg>
    <table class="tfm-table tfm-bill"><thead><tr><th scope="col">two bytes</th><th scope="col">read as</th></tr></thead><tbody></tbody></table>
    <output class="tfm-readout"></output>`;
  const $ = q => el.querySelector(q), slider = $("input"), put = (key, value) => { model.set(key, value); model.save_changes(); };

  function draw() {
    const kind = model.get("kind"), start = model.get("start"), end = start + 2 * COUNT, out = [];
    content.forEach((byte, i) => {
      const x = LEFT + i % ACROSS * CELL, y = 2 + Math.floor(i / ACROSS) * CELL, part = i < 8 ? "length" : i < head ? "text" : "data", read = i >= start && i < end;
      if (i % ACROSS === 0) out.push(`<text x="${LEFT - 8}" y="${y + 18}" text-anchor="end">${i}</text>`);
      out.push(`<rect class="tfm-byte tfm-${part}${read ? " tfm-read" : ""}" x="${x + 1}" y="${y + 1}" width="${CELL - 2}" height="${CELL - 2}" rx="3"/>`);
      out.push(`<text class="tfm-name" x="${x + CELL / 2}" y="${y + 18}" text-anchor="middle">${part === "text" ? safe(String.fromCharCode(byte)) : byte}</text>`);
      if (read) out.push(`<path class="tfm-under" d="M${x + ((i - start) % 2 ? 0 : 3)} ${y + CELL - 2}h${CELL - 3}"/>`);
    });
    const pairs = [...Array(COUNT).keys()].map(n => content.slice(start + 2 * n, start + 2 * n + 2)), found = pairs.map(([low, high]) => number(low, high, kind));
    $("svg").innerHTML = out.join("");
    el.querySelectorAll("[data-kind]").forEach(b => b.setAttribute("aria-pressed", b.dataset.kind === kind));
    slider.value = start; slider.setAttribute("aria-valuetext", `byte ${start}`);
    $("label .tfm-value").textContent = start;
    $("tbody").innerHTML = pairs.map((pair, n) => `<tr><th scope="row">${pair.join(" ")}</th><td>${shown(found[n])}</td></tr>`).join("");
    const words = `Bytes ${start} to ${end - 1} as ${kind}. ` + (found.every(isFinite) ? `No number is larger in size than ${shown(Math.max(...found.map(Math.abs)))}.` : "Not all of them are numbers.");
    $("svg").setAttribute("aria-label", `The ${content.length} bytes of the file: eight of length, ${head - 8} of header, ${content.length - head} of data. ${words}`);
    $(".tfm-readout").textContent = words;
  }

  el.querySelectorAll("[data-kind]").forEach(b => { b.onclick = () => put("kind", b.dataset.kind); });
  slider.oninput = () => put("start", Number(slider.value));
  $(".tfm-reset").onclick = () => first.forEach(([key, value]) => put(key, value));
  const watched = keys.map(key => "change:" + key);
  watched.forEach(event => model.on(event, draw));
  draw();
  return () => watched.forEach(event => model.off(event, draw));
}

export default { render };
