// The editor of code: CodeMirror in the place of a text area, in the book's own colours. It is
// fetched with the first focus or press on a page.
import { commands, highlight, language, python, state, view } from "./codemirror.js";

const { EditorSelection, EditorState, StateEffect, StateField } = state;
const { Decoration, EditorView } = view;
const { tags } = highlight;
const LEAVING = 60_000;                          // ms after Escape in which Tab leaves

// --- looks: the classes that code has in the book, and the page's variables --------------

const colours = language.HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], class: "k" },
  { tag: [tags.bool, tags.null], class: "plain" },       // they would be keywords
  { tag: [tags.string, tags.special(tags.string)], class: "s" },
  { tag: tags.comment, class: "c" },
  { tag: [tags.function(tags.definition(tags.variableName)), tags.className, tags.meta],
    class: "nf" },
]);

const looks = EditorView.theme({
  "&": { border: "1px solid var(--tfm-quiet)", borderRadius: "8px", background: "var(--raised)" },
  "&.cm-focused": { outline: "2px solid var(--link)", outlineOffset: "1px" },
  ".cm-scroller": { font: "inherit", fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { padding: ".8rem 0", caretColor: "currentColor" },
  ".cm-line": { padding: "0 .95rem 0 .5rem" },
  ".cm-gutters": { border: "0", borderRadius: "8px", background: "var(--raised)",
    color: "var(--tfm-quiet)" },
  ".cm-lineNumbers .cm-gutterElement": { minWidth: "2.5rem", padding: "0 .3rem 0 0" },
  "&.cm-focused .cm-matchingBracket": { background: "none", outline: "1px solid var(--link)" },
  "&.cm-focused .cm-nonmatchingBracket": { background: "var(--bad-tint)" },
  ".tfm-failed": { background: "var(--bad-tint)", boxShadow: "inset 3px 0 var(--bad)" },
  "@media (forced-colors: active)": {
    ".tfm-failed": { outline: "2px solid Highlight", outlineOffset: "-2px" },
  },
});

// --- the line that failed: marked until it is changed, or the code runs again ------------

const failed = StateEffect.define();
const failing = StateField.define({
  create: () => Decoration.none,
  update(marks, change) {
    const lineAt = (from) => change.startState.doc.lineAt(from);
    const left = marks.update({
      filter: (from) => !change.changes.touchesRange(from, lineAt(from).to),
    }).map(change.changes);
    const told = change.effects.find((effect) => effect.is(failed));
    if (!told) return left;
    const { doc } = change.state;
    if (!told.value || told.value > doc.lines) return Decoration.none;
    const line = Decoration.line({ class: "tfm-failed" });
    return Decoration.set([line.range(doc.line(told.value).from)]);
  },
  provide: (field) => EditorView.decorations.from(field),
});

// --- keys --------------------------------------------------------------------------------

function indent(editor) {                        // to the next column of four; or all lines selected
  const now = editor.state;
  if (now.selection.ranges.some((range) => !range.empty)) return commands.indentMore(editor);
  editor.dispatch(now.changeByRange(({ head }) => {
    const column = head - now.doc.lineAt(head).from, insert = " ".repeat(4 - (column % 4));
    return { changes: { from: head, insert }, range: EditorSelection.cursor(head + insert.length) };
  }), { scrollIntoView: true, userEvent: "input.indent" });
  return true;
}

function leave(editor) {                         // Tab leaves, unless another key comes first
  commands.simplifySelection(editor);
  editor.setTabFocusMode(LEAVING);
  return true;
}

const keys = (run) => view.keymap.of([
  { key: "Ctrl-Enter", mac: "Cmd-Enter", run },
  { mac: "Ctrl-Enter", run },
  { key: "Tab", run: indent, shift: commands.indentLess },
  { key: "Escape", run: leave },
  ...commands.historyKeymap, ...commands.defaultKeymap,
]);

// --- one editor ----------------------------------------------------------------------------

// Takes the place of `area`; `before` was its text at first, so that what has been typed
// meanwhile can be undone, too.
export function mount(area, { before, label, run, changed }) {
  const about = { id: area.id, tabindex: "0", "aria-label": label,
    "aria-describedby": area.getAttribute("aria-describedby") };
  const editor = new EditorView({ state: EditorState.create({ doc: before, extensions: [
    keys(() => { run(); return true; }), view.lineNumbers(), commands.history(), python.python(),
    language.indentUnit.of("    "), language.indentOnInput(), language.bracketMatching(),
    language.syntaxHighlighting(colours), failing, looks, EditorView.contentAttributes.of(about),
    EditorView.updateListener.of((update) => {
      if (update.docChanged) changed(update.state.doc.toString());
    }),
  ] }) });
  const set = (text) => editor.dispatch({
    changes: { from: 0, to: editor.state.doc.length, insert: text },
    annotations: commands.isolateHistory.of("full"),
  });
  if (area.value !== before) set(area.value);
  const focused = document.activeElement === area;
  const [from, to] = [area.selectionStart, area.selectionEnd];
  editor.dispatch({ selection: area.selectionDirection === "backward" ?
    { anchor: to, head: from } : { anchor: from, head: to } });
  editor.contentDOM.style.minHeight = `${area.offsetHeight - 2}px`;
  area.replaceWith(editor.dom);
  if (focused) editor.focus();
  editor.contentDOM.addEventListener("blur", () => editor.setTabFocusMode(false));
  return {
    text: () => editor.state.doc.toString(),
    set(text) { editor.focus(); set(text); },
    mark: (line) => editor.dispatch({ effects: failed.of(line) }),
  };
}
