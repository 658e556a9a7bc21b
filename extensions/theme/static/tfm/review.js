// Review cards: shows what cards.js lists (extensions/review.py writes it), one at a time, and keeps in this browser when each is due again. Nothing is sent anywhere.
const review = (() => {
const DAYS = [0, 1, 3, 7, 16, 35, 90];           // a card in box n comes again after so many days
const NEW = 20;                                  // new cards a day
const KEY = "tfm-cards";
const today = () => Math.floor((Date.now() - new Date().getTimezoneOffset() * 6e4) / 864e5);

function stored() {                              // name -> [box, day on which it is due], and how many were begun today
  try { return JSON.parse(localStorage.getItem(KEY)) ?? {}; } catch { return {}; }
}
function keep(state) {
  try { localStorage.setItem(KEY, JSON.stringify(state)); return true; } catch { return false; }
}

function moved([box], grade) {                   // again, good, easy: back to the first box, one further, two further
  const next = grade === "again" ? 0 : Math.min(DAYS.length - 1, box + (grade === "easy" ? 2 : 1));
  return [next, today() + DAYS[next]];
}

const make = (tag, props = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), props);
  element.append(...children);
  return element;
};
const option = (value, text) => make("option", { value, textContent: text });

return ({ chapters, cards }) => {
  const place = document.getElementById("cards");
  let state = stored(), queue = [], card;

  const chapter = make("select", {}, option("", "all chapters"), ...Object.entries(chapters).sort().map(([n, title]) => option(n, title)));
  const kind = make("select", {}, option("", "terms and claims"), option("term", "terms"), option("claim", "claims"));
  const count = make("p", { className: "tfm-cards-count", role: "status" });
  const front = make("p", { className: "tfm-cards-front", tabIndex: -1 });
  const back = make("div", { className: "tfm-cards-back", tabIndex: -1, hidden: true });
  const show = make("button", { type: "button", textContent: "Show the answer" });
  const grades = Object.entries({ again: "Again", good: "Good", easy: "Easy" }).map(([grade, text]) => {
    const button = make("button", { type: "button", textContent: text });
    button.addEventListener("click", () => answer(grade));
    return button;
  });
  const forget = make("button", { type: "button", textContent: "Forget my progress", className: "tfm-cards-forget" });
  const box = make("section", { className: "tfm-cards-card", ariaLabel: "Card" }, front, back, make("p", { className: "tfm-cards-buttons" }, show, ...grades));
  place.replaceChildren(make("p", { className: "tfm-cards-choice" }, make("label", {}, "Chapter ", chapter), " ", make("label", {}, "Kind ", kind)), count, box, forget);

  const chosen = () => cards.filter((c) => (!chapter.value || c.chapter === chapter.value) && (!kind.value || c.kind === kind.value));
  const begun = () => (state[""]?.[1] === today() ? state[""][0] : 0);
  const remember = () => { forget.hidden = !keep(state); };

  function fill() {                              // what is due, the oldest first, then new cards in the book's order
    const known = chosen().filter((c) => state[c.name] && state[c.name][1] <= today()).sort((a, b) => state[a.name][1] - state[b.name][1]);
    queue = [...known, ...chosen().filter((c) => !state[c.name]).slice(0, Math.max(0, NEW - begun()))];
  }

  function next(focus = true) {
    card = queue[0];
    const fresh = queue.filter((c) => !state[c.name]).length, all = chosen(), later = all.filter((c) => state[c.name]?.[1] > today()).length;
    count.textContent = `${queue.length - fresh} due, ${fresh} new today; ${later} of ${all.length} cards are scheduled for later`;
    front.textContent = card ? card.front : "Nothing is due. Come back tomorrow, or choose another chapter.";
    back.hidden = true;
    show.hidden = !card;
    for (const button of grades) button.hidden = true;
    if (focus) front.focus();
  }

  function reveal() {
    const link = make("a", { href: document.documentElement.dataset.content_root + card.at, textContent: "Where the book settles it" });
    back.replaceChildren(make("p", { textContent: card.back }), make("p", {}, link));
    back.hidden = false;
    show.hidden = true;
    const [was] = state[card.name] ?? [0];
    grades.forEach((button, i) => {
      const days = DAYS[moved([was], ["again", "good", "easy"][i])[0]];
      button.hidden = false;
      button.ariaLabel = `${button.textContent}: the card comes back ${days ? `in ${days} ${days === 1 ? "day" : "days"}` : "in this round"}`;
      button.title = button.ariaLabel;
    });
    back.focus();
  }

  function answer(grade) {
    if (!state[card.name]) state[""] = [begun() + 1, today()];
    state[card.name] = moved(state[card.name] ?? [0], grade);
    remember();
    queue.shift();
    if (grade === "again") queue.push(card);
    next();
  }

  show.addEventListener("click", reveal);
  box.addEventListener("keydown", (event) => {   // 1, 2, 3 as the buttons
    const button = card && !back.hidden && !event.ctrlKey && !event.metaKey && !event.altKey && grades[Number(event.key) - 1];
    if (button) button.click();
    else if (event.key === " " && event.target === front && card) { event.preventDefault(); reveal(); }
  });
  for (const select of [chapter, kind]) select.addEventListener("change", () => { fill(); next(false); });
  forget.addEventListener("click", () => { if (confirm("Forget which cards you know?")) { state = {}; remember(); fill(); next(); } });
  remember();
  fill();
  next(false);
};
})();
