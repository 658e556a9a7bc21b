"""The drawings on the covers of the parts, each at most 350 pixels wide, so that it is legible in a phone's column; what they show is said on the covers."""
from collections.abc import Callable

from sketch import box, frame, line, rect, text, tint, var

WIDTH = 350
Drawing = tuple[int, list[str]]               # its height, and what is drawn


def shortcut() -> Drawing:
    "One way from word to word through every state between them, and one straight to it."
    words, x = ("the", "owl", "that", "we", "heard", "sleeps"), [26 + 59 * i for i in range(6)]
    out = [text(4, 14, "recurrence: four steps", "start")]
    for i, (at, word) in enumerate(zip(x, words)):
        on = i >= 1
        out += [box(at - 16, 30, 32, 26, f"h_{i + 1}", colour="w" if on else "quiet"), text(at, 96, word), line(f"M{at} 82V58", "w" if i == 1 else "quiet", 2.5 if i == 1 else 1.5)]
        if i < 5: out.append(line(f"M{at + 16} 43H{x[i + 1] - 18}", "w" if on else "quiet", 2.5 if on else 1.5))
    out += [text(4, 138, "attention: one step", "start"), box(x[5] - 27, 146, 54, 26, "output", colour="w")]
    for i, at in enumerate(x): out.append(line(f"M{at} 222C{at} 190 {x[5] - 20 + 8 * i} 210 {x[5] - 20 + 8 * i} 174", "w" if i == 1 else "quiet", 2.5 if i == 1 else 1.2, head=i == 1))
    return 244, out + [text(at, 238, word) for at, word in zip(x, words)]


def one_head() -> Drawing:
    "From token embeddings to heads, and the three places at which positions can be encoded."
    out = [frame(122, 54, 212, 214), rect(112, 46, 212, 214, var("ground"), var("line"), 'rx="9" stroke-width="1.4"'), text(318, 253, "H heads", "end", "quiet")]
    out += [box(118, 6, 200, 26, "token embeddings")] + [line(f"M{x} 32V66") for x in (149, 211, 288)]
    out += [box(122, 68, 54, 26, "q", colour="q"), box(184, 68, 54, 26, "k", colour="k"), box(261, 68, 54, 26, "v", colour="v"), frame(117, 63, 126, 36, True)]
    out += [line("M149 94V128", "q"), line("M211 94V128", "k"), box(119, 130, 122, 42, "scores q · k / √D", "softmax: weights", colour="w")]
    out += [line("M180 172V206", "w"), line("M288 94V206", "v"), box(150, 208, 168, 26, "weighted sum of values"), line("M234 234V282"), box(118, 284, 200, 26, "heads joined, times W_O")]
    out += [box(2, 68, 68, 26, "positions"), line("M36 68V19H116", dashed=True), text(62, 14, "add"), line("M70 81H115", dashed=True), text(93, 75, "rotate"), line("M36 94V151H117", dashed=True), text(72, 146, "bias")]
    return 312, out


def grid(x: float, y: float, seen: Callable[[int, int], str], gap: int = 0) -> list[str]:
    "Six positions (rows) and the positions that they may attend to, in the colour that `seen` names; after the third there may be a gap."
    def at(i: int) -> float: return 14 * i + gap * (i > 2)
    return [rect(x + at(j), y + at(i), 12, 12, tint(c, 80) if (c := seen(i, j)) else "none", var(c or "line"), 'rx="2"') for i in range(6) for j in range(6)]


def three_masks() -> Drawing:
    "The block, and the three masks that make an encoder, a decoder and an encoder–decoder of it."
    out = [frame(8, 4, 334, 70), text(334, 20, "× N", "end", "quiet"), line("M18 49H46"), box(48, 36, 80, 26, "attention"), line("M128 49H149"), box(184, 36, 100, 26, "feed-forward"), line("M171 49H182"), line("M284 49H299"), line("M321 49H338")]
    out += [line("M32 49V24H160V36", width=1.2), line("M177 49V24H310V36", width=1.2)]
    for x in (160, 310): out.append(f'<circle cx="{x}" cy="49" r="10" style="fill:{var("ground")};stroke:{var("ink")}"/><path d="M{x - 5} 49H{x + 5}M{x} 44V54" style="stroke:{var("ink")}"/>')
    masks = ((lambda i, j: "w", 0, "encoder", "BERT"), (lambda i, j: "w" if j <= i else "", 0, "decoder", "GPT, Llama"), (lambda i, j: ("w" if i < 3 or j > 2 else "k") if j < 3 or 2 < j <= i else "", 5, "encoder–decoder", "2017, T5, BART"))
    for n, (seen, gap, name, models) in enumerate(masks):
        x = 52 + 121 * n
        out += [line(f"M{x} 76V94"), *grid(x - 41 - gap / 2, 100, seen, gap), text(x, 208, name), text(x, 225, models, colour="quiet", size=12)]
    return 230, out


CUTS = (("rows", "data"), ("state", "sharded"), ("matrices", "tensor"), ("tokens", "context"), ("layers", "pipeline"))


def cut(x: float, y: float, how: str) -> list[str]:
    "A square of 56 pixels, cut among four devices."
    def piece(device: int, left: float, top: float, width: float, height: float, said: bool = True) -> str:
        return rect(x + left, y + top, width, height, tint(str(device + 1), 30), var(str(device + 1)), 'rx="2"') + (text(x + left + width / 2, y + top + height / 2 + 4, str(device), size=11) if said else "")
    if how == "rows": return [piece(d, 0, 14.5 * d, 56, 12.5) for d in range(4)]
    if how == "layers": return [piece(d, 6, 43.5 - 14.5 * d, 44, 11) for d in range(4)]
    if how == "state": return [piece(d, 14.5 * d, 20 * row, 12.5, 16) for row in range(3) for d in range(4)]
    if how == "matrices": return [piece(d, 14.5 * d, 0, 12.5, 26) for d in range(4)] + [piece(d, 14, 29 + 7 * d, 28, 5.5, False) for d in range(4)]
    return [piece(d, 14.5 * d, 4, 12.5, 26) for d in range(4)] + [line(f"M{x + 50} {y + 34}V{y + 48}H{x + 6}V{y + 34}")]                # keys and values go round a ring


def size_and_devices() -> Drawing:
    "What follows from parameters and tokens, and the five ways to divide a step."
    out = [box(6, 6, 124, 26, "N parameters"), box(190, 6, 124, 26, "D tokens"), box(6, 72, 106, 42, "memory", "of a step"), box(136, 72, 126, 42, "6ND operations", "of training"), box(288, 72, 56, 42, "loss")]
    out += [line("M59 32V70"), line("M100 32V52H178V70"), line("M240 32V70"), line("M262 93H286", dashed=True), text(4, 155, "one training step on four devices, divided by", "start")]
    for n, (how, name) in enumerate(CUTS):
        x = 7 + 70 * n
        out += [*cut(x, 168, how), text(x + 28, 244, how), text(x + 28, 260, name, colour="quiet", size=12)]
    return 266, out


def traffic() -> Drawing:
    "Attention with and without its matrix in memory, and what each new token makes a model read."
    out = []
    for x, title in ((0, "in three steps"), (182, "in tiles")):
        out += [text(x + 84, 14, title), rect(x + 1, 22, 166, 26, tint("quiet"), var("quiet")), text(x + 84, 39.5, "GPU memory: large, slow", size=12)]
        out += [rect(x + 34, 96, 100, 26, tint("quiet"), var("quiet")), text(x + 84, 113.5, "on chip: fast", size=12)]
        out += [line(f"M{x + 44} 50V94"), text(x + 39, 76, "q, k, v", "end", size=12), line(f"M{x + 126} 94V50"), text(x + 131, 76, "output", "start", size=12)]
    out += [line(f"M{x} {'94V50' if up else '50V94'}", "w", 2.5) for x, up in ((61, True), (77, False), (93, True), (109, False))] + [text(84, 138, "four times T × T", colour="w", size=12)]
    out.append(text(4, 164, "what one new token reads", "start"))
    rows = (("every key: cache", lambda j: True), ("some keys: sparse", lambda j: j in (0, 4, 9, 10, 11)), ("a state of fixed size", None), ("a few experts", None))
    for n, (name, seen) in enumerate(rows):
        y = 174 + 24 * n
        out.append(text(4, y + 12.5, name, "start", size=12))
        if seen: out += [rect(140 + 17.5 * j, y, 14, 16, tint("k", 70) if seen(j) else "none", var("k" if seen(j) else "line"), 'rx="2"') for j in range(12)]
    out += [rect(140, 222, 66.5, 16, tint("w", 70), var("w"), 'rx="2"')] + [rect(140 + 26.25 * j, 246, 22, 16, tint("v", 70) if j in (2, 5) else "none", var("v" if j in (2, 5) else "line"), 'rx="2"') for j in range(8)]
    return 268, out


def patch() -> Drawing:
    "Two runs side by side: a state of the clean run takes the place of the same state of the corrupted run."
    rows, out = (124, 84, 44), []
    for left, words, colour in ((62, "Ada Ash was born in".split(), "q"), (226, "Bo Elm was born in".split(), "quiet")):
        x = [left + 29 * i for i in range(5)]
        for i in range(5):
            for low, high in ((146, 124), (124, 84)): out += [line(f"M{x[j]} {low - 6}L{x[i]} {high + 6}", "line", 1.2, head=False) for j in (i - 1, i) if j >= 0]
            out.append(line(f"M{x[i]} 78L{x[4]} 50", "line", 1.2, head=False))
        for i in range(5): out += [f'<circle cx="{x[i]}" cy="{y}" r="6" style="fill:{tint(colour, 30)};stroke:{var(colour)}"/>' for y in rows[:2 if i < 4 else 3]] + [text(x[i], 162, words[i], size=12)]
    out += [text(4, y + 4, f"block {n}", "start", "quiet", 12) for n, y in enumerate(rows, 1)]
    out += [text(342, 20, "whose town?", "end"), text(178, 20, "Ada’s town", "middle"), line("M178 38V25"), line("M342 38V25", "w", 2.5), text(120, 184, "clean run", colour="quiet"), text(284, 184, "corrupted run", colour="quiet")]
    out += [line("M91 78C110 60 236 52 253 77", "w", 2.5), line("M260 81L334 48", "w", 2.5)]
    return 190, out + [f'<circle cx="{x}" cy="84" r="7" style="fill:{var("w")};stroke:{var("w")}"/>' for x in (91, 255)]


DRAWINGS: dict[str, Callable[[], Drawing]] = {f.__name__: f for f in (shortcut, one_head, three_masks, size_and_devices, traffic, patch)}
