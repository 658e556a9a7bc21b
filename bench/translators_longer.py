"""Chapter 8: the transformer of `bench.translators` once more, on as many words as its LSTMs had
in the end."""
import bench.translators as short
from bench import over_seeds, size, ticked
from tfmlib.workbench import load_record

KIND, STEPS = "transformer", max(short.UNTIL.values())


def measure(seed: int) -> list[dict]:
    "Its learning curve, at the rate that was chosen for it."
    peak = next(r["peak"] for r in load_record("translators").rows if r["what"] == "curve"
                and r["model"] == KIND)
    def watch(model, step):
        return (short.quality(model, short.tested_on()[:short.WATCHED])
                if step in short.STOPS else None)
    runs = [short.learn(KIND, float(peak), seed + s, STEPS, watch)
            for s in ticked(short.SEEDS, "seed")]
    facts = {"model": KIND, "width": short.widths()[KIND], "parameters": size(runs[0][0]),
             "peak": peak}
    return [{**facts, "steps": stop}
            | over_seeds([{name: float(h[name][i]) for name in ("BLEU", "exact")}
                          | {"words": short.words_seen(seed + s, stop)}
            for s, (_, h) in zip(short.SEEDS, runs)])
            for i, stop in enumerate(runs[0][1].steps("BLEU").tolist())]
