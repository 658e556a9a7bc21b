// The editors of the book: a text area in place of a cell's code, its buttons, the worker that runs
// Python for all of them, and drafts that stay in this browser. What is done with the code is said
// by check.js (practice pages) and run.js (chapters). Nothing is fetched before the first focus or
// press, which brings code.js with CodeMirror; the first press brings worker.js and what it needs.
const here = new URL("./", import.meta.url);
export const told = JSON.parse(document.getElementById("tfm-inpage").textContent);
const START = 120_000;                           // ms that nothing may arrive at the start
const TABS = "Tab indents; Escape, then Tab leaves the editor; ";
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

export const stored = (change) => { try { return change(localStorage); } catch { return null; } };
const draft = (key) => stored((s) => s.getItem(key));
function keep(key, text, stub) {
  stored((s) => (text === stub ? s.removeItem(key) : s.setItem(key, text)));
}

// --- the editor: a text area, and with the first focus or press CodeMirror in its place ---

let asking;                                      // code.js, or null where it cannot be had
const library = () => (asking ??= !told.code ? Promise.resolve(null) :
  import(`./code.js?v=${told.version}`).catch(() => { asking = undefined; return null; }));

const composed = (area) => new Promise((done) => {
  if (area.dataset.composing === undefined) done();
  else area.addEventListener("compositionend", () => setTimeout(done), { once: true });
});

function replace(area, text) {                   // one step, which the browser can undo
  area.focus();
  area.select();
  if (document.execCommand("insertText", false, text)) return;
  area.value = text;
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

const plain = (area) => ({
  text: () => area.value, set: (text) => replace(area, text), mark() {},
});

const upgrades = [];                             // of all editors of the page
async function upgraded(first) {                 // the first one at once, the others when there is time
  await first();
  for (const upgrade of upgrades) if (upgrade !== first) {
    await new Promise((go) => setTimeout(go));
    await upgrade();
  }
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

// `word` is on its button, `first` and the keys beneath it; `given` makes what Python is asked from
// the text, `show` puts the answer into `place`; `on` hears of a press and of a reset.
export function editor(cell, { id, key, label, title, word, first = "", given, show, on, more = [] }) {
  const pre = cell.querySelector("pre"), stub = pre.textContent.trimEnd() + "\n";
  const area = element("textarea", {
    value: draft(key) ?? stub, spellcheck: false, autocomplete: "off", id,
    autocapitalize: "off", ariaLabel: label,
  });
  area.setAttribute("aria-describedby", `${id}-keys`);
  const said = element("span", { role: "status", className: "tfm-trying" });
  const place = element("div", { className: "tfm-answered" });
  place.setAttribute("aria-live", "polite");
  let code = plain(area), round = 0;             // a reset forgets the run that is on its way
  const press = button(word, title, run), reset = button("Reset", title, async () => {
    round += 1;
    await upgrade();
    upgraded(upgrade);
    code.set(stub);
    code.mark(null);
    on.reset?.(place);
  });
  const bar = element("div", { className: "tfm-try" }, press, reset, ...more, said);
  const hint = element("p", { className: "tfm-try-keys", id: `${id}-keys` });
  const keys = (tabs) => { hint.textContent = `${first}${tabs}Ctrl and Enter ${word.toLowerCase()}.`; };

  async function run() {
    if (press.ariaDisabled === "true") return;
    press.ariaDisabled = "true";
    said.textContent = "Waiting …";
    on.press?.(place);
    upgraded(upgrade);
    code.mark(null);
    const mine = round;
    const answer = await asked(given(code.text()), (data) => {
      const text = progress(data);
      if (said.textContent !== text) said.textContent = text;
    });
    said.textContent = "";
    if (mine === round) {
      show(place, answer);
      code.mark(answer.line ?? null);
    }
    press.ariaDisabled = "false";
    place.dataset.answer = JSON.stringify(answer);
  }

  const before = area.value, changed = (text) => keep(key, text, stub);
  async function upgrade() {
    const found = await library();
    if (!found) return keys("");
    await composed(area);
    if (area.isConnected) code = found.mount(area, { before, label, run, changed });
  }

  upgrades.push(upgrade);
  area.addEventListener("focus", () => upgraded(upgrade));
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    run();
  });
  area.addEventListener("compositionstart", () => { area.dataset.composing = ""; });
  area.addEventListener("compositionend", () => { delete area.dataset.composing; });
  area.addEventListener("input", () => { fitted(area); changed(area.value); });
  pre.parentElement.classList.add("tfm-editor");
  pre.parentElement.querySelector(".tfm-copy")?.remove();
  pre.replaceWith(area);
  fitted(area);
  keys(told.code ? TABS : "");
  return { bar, hint, place, text: () => code.text() };
}
