// Practice in the page: each empty answer becomes an editor, and Check asks the book's own
// checker. Nothing is fetched before the first press; then worker.js and what it needs.
const here = new URL("./", import.meta.url);
const told = JSON.parse(document.getElementById("tfm-inpage").textContent);
const START = 120_000;                           // ms that nothing may arrive at the start
const INDENT = "    ";
const ENDLESS = "Is there a loop without an end? If not, this device is too slow for it, " +
  "and Jupyter or Colab is not.";
const KEYS = "Tab indents; Escape, then Tab leaves the editor; Ctrl and Enter check.";

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

let last = Promise.resolve();                    // one answer after the other
function checked(name, source, say) {
  const run = async () => {
    const booted = await boot(say);
    if (booted.kind !== "ready") return booted;
    worker.postMessage({ kind: "check", name, source });
    return listen({ say }, told.limit);
  };
  return (last = last.then(run, run));
}

// --- drafts: kept in this browser -------------------------------------------------------

const key = (name) => `tfm-answer:${told.page}/${name}`;
const stored = (change) => { try { return change(localStorage); } catch { return null; } };
const draft = (name) => stored((s) => s.getItem(key(name)));
function keep(name, text, stub) {
  stored((s) => (text === stub ? s.removeItem(key(name)) : s.setItem(key(name), text)));
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

function onKey(event, area, check) {
  const { key: pressed } = event, free = area.dataset.free !== undefined;
  if (pressed === "Escape") { area.dataset.free = ""; return; }
  if (pressed === "Enter" && (event.ctrlKey || event.metaKey)) check();
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

const element = (name, more = {}, ...inner) => {
  const made = Object.assign(document.createElement(name), more);
  made.append(...inner);
  return made;
};

function progress(data) {
  if (data.kind === "starting" || data.got === data.total) return "Starting Python …";
  if (data.kind === "case") return `Checking property ${data.step} of ${data.steps} …`;
  const mb = (n) => (n / 2 ** 20).toFixed(0);
  return `Loading Python and NumPy, ${mb(data.got)} of ${mb(data.total)} MB …`;
}

function linesOf(answer) {                       // the verdict, its first line in bold
  if (answer.kind === "verdict") return answer.lines;
  if (answer.kind === "broken") return ["Check does not work here", answer.why];
  if (answer.kind === "late") return ["Python did not start", "Nothing came for two minutes."];
  const at = answer.at ? `It was at the property: ${answer.at.property}` : "";
  const head = `✗ stopped: ${answer.at ? "a case" : "the cell"} took more than ${told.limit / 1000} seconds`;
  return [head, at, ENDLESS].filter(Boolean);
}

function show(place, answer) {
  const [head, ...rest] = linesOf(answer);
  const style = answer.passed ? "pass" : answer.lacks?.length ? "none" : "fail";
  const box = element("div", { className: `tfm-check tfm-${style}` },
    element("p", {}, element("strong", { textContent: head })),
    ...rest.map((line) => element("p", { textContent: line.trim() })));
  const printed = answer.printed ? [element("pre", { textContent: answer.printed })] : [];
  place.replaceChildren(box, ...printed);
}

// --- one exercise -----------------------------------------------------------------------

function button(text, title, onclick) {
  const ariaLabel = `${text}: ${title}`;
  return element("button", { type: "button", textContent: text, ariaLabel, onclick });
}

function editor(cell, name) {
  const pre = cell.querySelector("pre"), stub = pre.textContent.trimEnd() + "\n";
  const id = `answer-${name}`, title = told.titles[name];
  const area = element("textarea", {
    value: draft(name) ?? stub, spellcheck: false, autocomplete: "off", id,
    autocapitalize: "off", ariaLabel: `Your answer: ${title}`,
  });
  area.setAttribute("aria-describedby", `${id}-keys`);
  const said = element("span", { role: "status", className: "tfm-trying" });
  const verdict = element("div", { className: "tfm-answered" });
  verdict.setAttribute("aria-live", "polite");
  const press = button("Check", title, check), reset = button("Reset", title, () => {
    area.setSelectionRange(0, area.value.length);
    insert(area, stub);
  });
  const bar = element("div", { className: "tfm-try" }, press, reset,
    button("Download notebook", "all answers of this page", download), said);
  const keys = element("p", { className: "tfm-try-keys", id: `${id}-keys`, textContent: KEYS });

  async function check() {
    if (press.ariaDisabled === "true") return;
    press.ariaDisabled = "true";
    said.textContent = "Waiting …";
    cell.nextElementSibling?.querySelector(".cell_output")?.setAttribute("hidden", "");
    verdict.replaceChildren();
    const answer = await checked(name, area.value, (data) => {
      const text = progress(data);
      if (said.textContent !== text) said.textContent = text;
    });
    said.textContent = "";
    show(verdict, answer);
    press.ariaDisabled = "false";
    verdict.dataset.answer = JSON.stringify(answer);
  }

  area.addEventListener("keydown", (event) => onKey(event, area, check));
  area.addEventListener("blur", () => { delete area.dataset.free; });
  area.addEventListener("input", () => { fitted(area); keep(name, area.value, stub); });
  pre.parentElement.classList.add("tfm-editor");
  pre.parentElement.querySelector(".tfm-copy")?.remove();
  pre.replaceWith(area);
  fitted(area);
  cell.append(bar, keys, verdict);
  return { name, text: () => area.value };
}

// --- the notebook -----------------------------------------------------------------------

const code = (source) => ({
  cell_type: "code", execution_count: null, metadata: {}, outputs: [], source,
});
const words = (source) => ({ cell_type: "markdown", metadata: {}, source });

function notebook() {                            // the answers as they are, with their checks
  const cells = [words(`# ${document.querySelector("h1").firstChild.textContent}`),
    words("This notebook needs PyTorch and `tfmlib`, the book's library."), code(told.imports)];
  for (const { name, text } of editors) {
    cells.push(words(`## ${told.titles[name] ?? name}`), code(text().trimEnd()),
      code(`check_${name}(${name})`));
  }
  const numbered = cells.map((cell, n) => ({ ...cell, id: `cell-${n}` }));
  return { cells: numbered, metadata: { language_info: { name: "python" } }, nbformat: 4,
    nbformat_minor: 5 };
}

function download() {
  const text = JSON.stringify(notebook(), null, 1);
  const href = URL.createObjectURL(new Blob([text], { type: "application/x-ipynb+json" }));
  element("a", { href, download: `practice_${told.page}.ipynb` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

const editors = [];
for (const cell of document.querySelectorAll(".cell.tag_stub")) {
  const name = [...cell.classList].find((c) => c.startsWith("tag_exercise-"))?.slice(13);
  if (name in told.titles && !(name in told.elsewhere)) editors.push(editor(cell, name));
}
