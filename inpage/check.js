// Practice in the page: each empty answer becomes an editor, and Check asks the book's own checker.
// What is solved has a tick, which stays in this browser.
import { box, button, editor, element, failure, stored, told } from "./editor.js";

const linesOf = (answer) => (answer.kind === "verdict" ? answer.lines : failure(answer, "Check"));

function show(place, answer) {
  const open = answer.lacks?.length || answer.written === false;
  const style = answer.passed ? "pass" : open ? "none" : "fail";
  const pre = () => element("pre", { textContent: answer.printed, tabIndex: 0 });
  const printed = answer.printed ? [pre()] : [];
  place.replaceChildren(box(linesOf(answer), style), ...printed);
}

function exercise(cell, name) {
  const title = told.titles[name], section = cell.closest("section");
  const solved = { key: `tfm-solved:${told.page}/${name}`, section, title };
  const output = cell.nextElementSibling?.querySelector(".cell_output");
  const press = (place) => {
    output?.setAttribute("hidden", "");
    place.replaceChildren();
  };
  const reset = (place) => {
    output?.removeAttribute("hidden");
    place.replaceChildren();
    tick(solved, false);
  };
  const made = editor(cell, {
    id: `answer-${name}`, key: `tfm-answer:${told.page}/${name}`, label: `Your answer: ${title}`,
    title, word: "Check", given: (source) => [told.page, name, source, called(source)],
    show(place, answer) {
      show(place, answer);
      if (answer.passed) tick(solved, true);
    },
    on: { press, reset },
    more: [button("Download notebook", "all answers of this page", download)],
  });
  cell.append(made.bar, made.hint, made.place);
  return { name, text: made.text, solved };
}

// --- the printed answers ------------------------------------------------------------------

const defines = (text, name) => new RegExp(`^(?:def|class) ${name}\\b|^${name} *=`, "m").test(text);

const printed = new Map();                       // the functions of the page's solutions
for (const pre of document.querySelectorAll(".cell.tag_solution pre")) {
  const text = pre.textContent;
  for (const [, name] of text.matchAll(/^def (\w+)/gm)) printed.set(name, text);
}

function called(source, found = new Set()) {     // those that an answer calls, of other exercises
  for (const [name] of source.matchAll(/\w+_solution\b/g)) {
    const text = printed.get(name);
    if (!text || found.has(text) || defines(source, name)) continue;
    found.add(text);
    called(text, found);
  }
  return [...found].join("\n\n");
}

// --- what is solved -------------------------------------------------------------------------

const isSolved = ({ key }) => stored((s) => s.getItem(key)) !== null;

function tick(solved, is) {
  stored((s) => (is ? s.setItem(solved.key, "1") : s.removeItem(solved.key)));
  tell();
}

function tell() {                                // a tick in each heading, and how many there are
  const all = editors.map((one) => one.solved), left = all.filter((one) => !isSolved(one));
  for (const one of all) {
    const heading = one.section.querySelector("h1, h2, h3");
    heading.querySelector(".tfm-solved")?.remove();
    if (left.includes(one)) continue;
    const sign = element("span", { textContent: "✓ ", ariaHidden: "true" });
    const mark = element("span", { className: "tfm-solved" }, " ", sign, "solved");
    heading.insertBefore(mark, heading.querySelector(".headerlink"));
  }
  const place = document.querySelector(".tfm-solved-of");
  if (!place) return;
  place.querySelector("progress").value = all.length - left.length;
  const line = place.querySelector("span");
  line.textContent = `${all.length - left.length} of ${all.length} exercises solved.`;
  if (!left.length || left.length === all.length) return;
  const href = `#${left[0].section.id}`, textContent = left[0].title;
  line.append(" Next: ", element("a", { href, textContent }));
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
    const answer = text().trimEnd(), given = `${name}_solution`;
    const named = !defines(answer, name) && defines(answer, given) && `${name} = ${given}`;
    const source = [called(answer), answer, named].filter(Boolean).join("\n\n\n");
    cells.push(words(`## ${told.titles[name] ?? name}`), code(source),
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
  if (name in told.titles && !(name in told.elsewhere)) editors.push(exercise(cell, name));
}
tell();
addEventListener("pageshow", tell);
addEventListener("storage", tell);
