// Practice in the page: each empty answer becomes an editor, and Check asks the book's own checker.
import { box, button, editor, element, failure, told } from "./editor.js";

const KEYS = "Tab indents; Escape, then Tab leaves the editor; Ctrl and Enter check.";
const linesOf = (answer) => (answer.kind === "verdict" ? answer.lines : failure(answer, "Check"));

function show(place, answer) {
  const style = answer.passed ? "pass" : answer.lacks?.length ? "none" : "fail";
  const pre = () => element("pre", { textContent: answer.printed, tabIndex: 0 });
  const printed = answer.printed ? [pre()] : [];
  place.replaceChildren(box(linesOf(answer), style), ...printed);
}

function exercise(cell, name) {
  const title = told.titles[name];
  const press = (place) => {
    cell.nextElementSibling?.querySelector(".cell_output")?.setAttribute("hidden", "");
    place.replaceChildren();
  };
  const made = editor(cell, {
    id: `answer-${name}`, key: `tfm-answer:${told.page}/${name}`, label: `Your answer: ${title}`,
    title, word: "Check", keys: KEYS, given: (source) => [told.page, name, source], show,
    on: { press }, more: [button("Download notebook", "all answers of this page", download)],
  });
  cell.append(made.bar, made.hint, made.place);
  return { name, text: made.text };
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
  if (name in told.titles && !(name in told.elsewhere)) editors.push(exercise(cell, name));
}
