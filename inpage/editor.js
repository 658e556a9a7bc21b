// The editors of the book: a text area in place of a cell's code, its buttons, the worker that runs
// Python for all of them, and drafts that stay in this browser. What is done with the code is said
// by check.js (practice pages) and run.js (chapters). Nothing is fetched before the first press;
// then worker.js and what it needs.
const here = new URL("./", import.meta.url);
export const told = JSON.parse(document.getElementById("tfm-inpage").textContent);
const START = 120_000;                           // ms that nothing may arrive at the start
const INDENT = "    ";
const ENDLESS = "Is there a loop without an end? If not, this device is too slow for it, " +
  "and Jupyter or Colab is not.";

// --- the worker: one for the page, started by the first press ---------------------------

let worker, waiting;

function listen(task, limit) {                   // a promise for the worker's answer
  return new Promise((done) => {
    let timer;
    const end = (answer) => { clearTimeout(timer); waiting = undefined; done(answer); };
    const wait = () => {
      clearTimeout(timer);
      timer = setTimeout(() => { stop(); end({ kind: "stopped", at: task.at }); }, limit);
    };
    waiting = (data) => {
      if (data.kind === "loading" || data.kind === "starting") task.say(data);
      if (data.kind === "case") task.say(task.at = data);
      if (["ready", "verdict", "broken"].includes(data.kind)) end(data);
      else wait();
    };
    wait();
  });
}

function stop() {
  worker?.terminate();
  worker = undefined;
}

async function boot(say) {
  if (worker) return { kind: "ready" };
  try { worker = new Worker(new URL(`worker.js?v=${told.version}`, here)); }
  catch (error) { return { kind: "broken", why: error.message }; }
  worker.onmessage = ({ data }) => waiting?.(data);
  worker.onerror = (event) => waiting?.({ kind: "broken", why: event.message || "no worker" });
  worker.postMessage({ kind: "start", ...told });
  const answer = await listen({ say }, START);
  if (answer.kind !== "ready") stop();
  return answer.kind === "stopped" ? { kind: "late" } : answer;
}

let last = Promise.resolve();                    // one after the other
function asked(given, say) {              // what Python answers to what it is given
  const run = async () => {
    const booted = await boot(say);
    if (booted.kind !== "ready") return booted;
    worker.postMessage({ kind: "ask", given });
    return listen({ say }, told.limit);
  };
  return (last = last.then(run, run));
}

// --- drafts: kept in this browser -------------------------------------------------------

const stored = (change) => { try { return change(localStorage); } catch { return null; } };
const draft = (key) => stored((s) => s.getItem(key));
function keep(key, text, stub) {
  stored((s) => (text === stub ? s.removeItem(key) : s.setItem(key, text)));
}

// --- the editor: a text area that knows Tab, Enter and Escape ---------------------------

function replaceLines(area, change) {            // change the lines that are selected
  const { value, selectionStart: a, selectionEnd: b } = area;
  const from = value.lastIndexOf("\n", a - 1) + 1, block = value.slice(from, b);
  const lines = block.split("\n").map(change).join("\n");
  area.setSelectionRange(from, b);
  insert(area, lines);
  area.setSelectionRange(from, from + lines.length);
}

function insert(area, text) {                    // as if typed: undo takes it back
  area.focus();
  if (document.execCommand(text ? "insertText" : "delete", false, text)) return;
  area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

function newLine(area) {                         // with the indentation of the line above
  const { value, selectionStart: at } = area;
  const line = value.slice(value.lastIndexOf("\n", at - 1) + 1, at);
  insert(area, `\n${line.match(/^ */)[0]}${/:\s*(#.*)?$/.test(line) ? INDENT : ""}`);
}

function onKey(event, area, run) {
  const { key: pressed } = event, free = area.dataset.free !== undefined;
  if (pressed === "Escape") { area.dataset.free = ""; return; }
  if (pressed === "Enter" && (event.ctrlKey || event.metaKey)) run();
  else if (pressed === "Enter" && !event.shiftKey && !event.isComposing) newLine(area);
  else if (pressed === "Tab" && !free && !event.ctrlKey && !event.altKey) {
    const many = area.value.slice(area.selectionStart, area.selectionEnd).includes("\n");
    if (event.shiftKey) replaceLines(area, (line) => line.replace(/^ {1,4}/, ""));
    else if (many) replaceLines(area, (line) => (line ? INDENT + line : line));
    else insert(area, INDENT);
  } else {
    if (pressed !== "Tab" && pressed !== "Shift") delete area.dataset.free;
    return;
  }
  event.preventDefault();
}

const fitted = (area) => { area.rows = area.value.split("\n").length + 1; };

// --- what is said -----------------------------------------------------------------------

export const element = (name, more = {}, ...inner) => {
  const made = Object.assign(document.createElement(name), more);
  made.append(...inner);
  return made;
};

export function button(text, title, onclick) {
  const ariaLabel = `${text}: ${title}`;
  return element("button", { type: "button", textContent: text, ariaLabel, onclick });
}

function progress(data) {
  if (data.kind === "case") return `Checking property ${data.step} of ${data.steps} …`;
  if (data.kind === "starting" || data.got === data.total) return "Starting Python …";
  const mb = (n) => (n / 2 ** 20).toFixed(0);
  return `Loading Python and NumPy, ${mb(data.got)} of ${mb(data.total)} MB …`;
}

export function failure(answer, word) {          // lines for an answer that Python did not give
  if (answer.kind === "broken") return [`${word} does not work here`, answer.why];
  if (answer.kind === "late") return ["Python did not start", "Nothing came for two minutes."];
  const at = answer.at ? `It was at the property: ${answer.at.property}` : "";
  const what = answer.at ? "a case" : "the cell";
  const head = `✗ stopped: ${what} took more than ${told.limit / 1000} seconds`;
  return [head, at, ENDLESS].filter(Boolean);
}

export function box([head, ...rest], style) {    // its first line in bold
  return element("div", { className: `tfm-check tfm-${style}` },
    element("p", {}, element("strong", { textContent: head })),
    ...rest.map((line) => element("p", { textContent: line.trim() })));
}

// --- one editor -------------------------------------------------------------------------

// `word` is on its button, `keys` beneath it; `given` makes what Python is asked from the text,
// `show` puts the answer into `place`; `on` hears of a press and of a reset.
export function editor(cell, { id, key, label, title, word, keys, given, show, on, more = [] }) {
  const pre = cell.querySelector("pre"), stub = pre.textContent.trimEnd() + "\n";
  const area = element("textarea", {
    value: draft(key) ?? stub, spellcheck: false, autocomplete: "off", id,
    autocapitalize: "off", ariaLabel: label,
  });
  area.setAttribute("aria-describedby", `${id}-keys`);
  const said = element("span", { role: "status", className: "tfm-trying" });
  const place = element("div", { className: "tfm-answered" });
  place.setAttribute("aria-live", "polite");
  let round = 0;                                 // a reset forgets the run that is on its way
  const press = button(word, title, run), reset = button("Reset", title, () => {
    round += 1;
    area.setSelectionRange(0, area.value.length);
    insert(area, stub);
    on.reset?.(place);
  });
  const bar = element("div", { className: "tfm-try" }, press, reset, ...more, said);
  const hint = element("p", { className: "tfm-try-keys", id: `${id}-keys`, textContent: keys });

  async function run() {
    if (press.ariaDisabled === "true") return;
    press.ariaDisabled = "true";
    said.textContent = "Waiting …";
    on.press?.(place);
    const mine = round;
    const answer = await asked(given(area.value), (data) => {
      const text = progress(data);
      if (said.textContent !== text) said.textContent = text;
    });
    said.textContent = "";
    if (mine === round) show(place, answer);
    press.ariaDisabled = "false";
    place.dataset.answer = JSON.stringify(answer);
  }

  area.addEventListener("keydown", (event) => onKey(event, area, run));
  area.addEventListener("blur", () => { delete area.dataset.free; });
  area.addEventListener("input", () => { fitted(area); keep(key, area.value, stub); });
  pre.parentElement.classList.add("tfm-editor");
  pre.parentElement.querySelector(".tfm-copy")?.remove();
  pre.replaceWith(area);
  fitted(area);
  return { bar, hint, place, text: () => area.value };
}
