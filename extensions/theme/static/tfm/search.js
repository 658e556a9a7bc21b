// Formulas stand on a page three times (MathML, its TeX, what is seen); a search result quotes them once.
const quoted = Search.htmlToText;
Search.htmlToText = (html, anchor) => {
  const page = new DOMParser().parseFromString(html, "text/html");
  page.querySelectorAll(".katex-html, annotation, .tfm-exported, .eqno").forEach((element) => element.remove());
  return quoted(page.documentElement.outerHTML, anchor);
};
