// Chapters: a cell that needs NumPy alone becomes an editor, and Run shows what it gives.
import { box, editor, element, failure, told } from "./editor.js";

const FIRST = "You can change this code. The first Run loads Python and NumPy from this site, 9 MB " +
  "that your browser keeps. ";

const output = (text) => element("div", { className: "output text_plain" },
  element("div", { className: "highlight" }, element("pre", { textContent: text, tabIndex: 0 })));

function show(place, answer) {                   // as below any other cell, or what went wrong
  const texts = [answer.printed, answer.value].filter(Boolean).map(output);
  const lines = answer.kind === "verdict" ? answer.error : failure(answer, "Run");
  const error = lines ? [box(lines, "fail")] : [];
  const shown = texts.length ? [element("div", { className: "cell_output" }, ...texts)] : [];
  const none = lines || texts.length ? [] : [element("p", { textContent: "(no output)" })];
  place.replaceChildren(...shown, ...error, ...none);
}

function editable(cell, n) {
  const stored = cell.querySelector(".cell_output");
  const title = cell.closest("section").querySelector("h1, h2, h3").firstChild.textContent;
  const made = editor(cell, {
    id: `cell-${n}`, key: `tfm-edit:${told.page}/${n}`, label: `Code to change: ${title}`, title,
    word: "Run", first: n === 1 ? FIRST : "",
    given: (source) => [source],
    show(place, answer) {
      stored?.setAttribute("hidden", "");
      show(place, answer);
    },
    on: {
      reset(place) {
        stored?.removeAttribute("hidden");
        place.replaceChildren();
      },
    },
  });
  cell.querySelector(".cell_input").after(made.bar, made.hint);
  cell.append(made.place);
}

[...document.querySelectorAll(".cell.tag_edit")].forEach((cell, i) => editable(cell, i + 1));
