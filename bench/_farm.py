"""CPU runs of the book on many cores: python3 farm.py N [GROUP ...]; results land in bench/runs and build/ of this tree."""
import multiprocessing as mp, os, sys, time, traceback
os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
torch.set_num_threads(1)

def seq(xs): return list(xs)

def tasks(groups):
    out = []
    if "14" in groups:
        from bench import scaling_sweep as sweep, scaling_schedule as sch, scaling_repeats as rep, scaling_emergence as em
        law = sweep.rate_law(sweep.searched(0))
        long = {(128, 4_000_000), (128, 8_000_000), (96, 8_000_000)}
        own = [c for c in sweep.planned(0, law) if (c["C"], c["D"]) not in sweep.PREDICTED | long]
        def missing(R, cs, name):
            there = R.found()
            return [("run", name, c) for c in cs if sweep.key(c) not in there]
        a = missing(sweep.RUNS, own, "scaling_sweep")
        a += missing(sch.RUNS, [c for cs in sch.own_cases(0, law).values() for c in cs], "scaling_schedule")
        a += missing(rep.RUNS, rep.planned(0, law), "scaling_repeats")
        a += missing(em.RUNS, em.planned(0), "scaling_emergence")
        a.sort(key=lambda t: -(sweep.MICROSECONDS.get(t[2]["C"], 60) * t[2].get("D", 1_000_000)))
        out += a
    if "20" in groups:
        from bench import state_recall as sr
        cells = sorted({run[:2] for run in sr.runs()})
        slow = ("Mamba", "gated delta", "delta", "hybrid")
        order = lambda r: -(slow.index(r[1]) if r[1] in slow else 9)
        out += [("sr-try", *c, p) for p in sr.PEAKS for c in cells]
        if "L" in groups:
            from bench import state_language as sl
            out += [("sl-try", k, p) for p in sl.PEAKS for k in sl.MIXERS]
            out += [("sl-rate", k) for k in sl.MIXERS]
        out += [("sr-rate", *c) for c in cells]
        rs = sr.runs()
        out += [("sr", *r) for r in rs if r[3] == 0 and r[4] == sr.STEPS]
        out += [("sr", *r) for r in rs if r[4] == sr.LONGER]
        if "L" in groups: out += [("sl", *r) for r in sl.planned() if r[1] == 0]
        out += [("sr", *r) for r in rs if r[3] in (1, 2)]
        if "L" in groups: out += [("sl", *r) for r in sl.planned() if r[1] != 0]
        out += [("sr", *r) for r in rs if r[3] > 2]
    ef_, et_, sp_ = [], [], []
    if "21" in groups:
        from bench import expert_facts as ef, expert_text as et
        out += [("et-rate", c) for c in et.CASES]
        out += [("ef-rate", k, n) for n in reversed(ef.FACTS) for k in ef.KINDS]
        out += [("et", c, s) for s in et.SEEDS for c in et.CASES]
        out += [("ef", k, n, s) for s in ef.SEEDS for n in reversed(ef.FACTS) for k in ef.KINDS]
    if "19" in groups:
        from bench import sparse_quality as sq
        cost = {t: n for n, t in enumerate(("recall, 16 facts", "recall, 4 facts", "prose", sq.WIDE, "recall, 1 fact"))}
        cases = sorted(sq.CASES, key=lambda c: (cost[c[0]], c[1] != "native"))
        hard = lambda c: ("16 facts" not in c[0], c[1] not in sq.RELAYING, c[1] != "native")
        out += [("sq-rate", *c) for c in sorted(cases, key=hard)]
        out += [("sq", *c, s, 1) for s in sq.SEEDS for c in cases]
        out += [("sq", *c, 0, 2) for c in sorted(cases, key=lambda c: sq.TASKS[::-1].index(c[0])) if c[0] in sq.LONGER]
    return out

def mark(t): return "/tmp/farm-done-" + "-".join(map(str, t)).replace(" ", "_").replace(",", "").replace("/", "_")
def wait(t):
    while not os.path.exists(mark(t)): time.sleep(1)

def do(t):
    kind, *a = t
    if kind == "run":
        from bench import scaling, scaling_emergence as em
        name, c = a
        R = em.RUNS if name == "scaling_emergence" else scaling.Runs(name)
        if scaling.key(c) in R.found(): return
        R.add(c, (em.run if name == "scaling_emergence" else scaling.run)(c))
    elif kind.startswith("sr"):
        from bench import state_recall as sr
        if kind == "sr-try": sr.kept(*a[:2], sr.MIDDLE, a[2], 100, sr.TRIED)
        elif kind == "sr-rate":
            for p in sr.PEAKS: wait(("sr-try", *a, p))
            sr.rate_of(*a)
        else:
            task, k, D, seed, steps = a
            wait(("sr-rate", task, k))
            sr.kept(task, k, D, sr.rate_of(task, k), seed, steps)
    elif kind.startswith("sl"):
        from bench import state_language as sl
        if kind == "sl-try": sl.kept(*a, 100, sl.TRIED)
        elif kind == "sl-rate":
            for p in sl.PEAKS: wait(("sl-try", *a, p))
            sl.rate_of(*a)
        else:
            wait(("sl-rate", a[0]))
            sl.kept(a[0], sl.rate_of(a[0]), *a[1:])
    elif kind.startswith("ef"):
        from bench import expert_facts as ef
        k, n, *s = a
        def tried(peak): return ef.kept(f"facts-{k}-{n}-0-{ef.TRIED}-{peak:g}", lambda: ef.judged(ef.trained(k, n, peak, 100, ef.TRIED), n, 100))["nats"]
        if s: wait(("ef-rate", k, n))
        peak = ef.best_rate(tried, ef.PEAKS)
        if s: ef.kept(f"facts-{k}-{n}-{s[0]}-{ef.STEPS}-{peak:g}", lambda: ef.judged(ef.trained(k, n, peak, s[0], ef.STEPS), n, s[0]))
    elif kind.startswith("et"):
        from bench import expert_text as et
        c, *s = a
        def tried(peak): return et.kept(f"text-{c}-0-{et.TRIED}-{peak:g}", lambda: et.judged(c, et.trained(c, peak, 100, et.TRIED), 1))["loss"]
        if s: wait(("et-rate", c))
        peak = et.best_rate(tried, et.PEAKS)
        if s: et.kept(f"text-{c}-{s[0]}-{et.STEPS}-{peak:g}", lambda: et.judged(c, et.trained(c, peak, s[0], et.STEPS), 2))
    elif kind.startswith("sq"):
        from bench import sparse_quality as sq
        task, k, *more = a
        if more: wait(("sq-rate", task, k))
        peak = sq.rate_of(task, k, 0)
        if more: sq.kept(task, k, peak, more[0], more[1] * sq.STEPS[task], 1)
    open(mark(t), "w").close()

def worker(ts, at):
    torch.set_num_threads(1)
    while True:
        with at.get_lock():
            i = at.value; at.value += 1
        if i >= len(ts): return
        began = time.time(), time.process_time()
        try: do(ts[i]); why = ""
        except Exception: why = " FAILED\n" + traceback.format_exc()
        print(f"{time.time()-T0:.0f} {i}/{len(ts)} {str(ts[i])[:150]} wall {time.time()-began[0]:.0f} cpu {time.process_time()-began[1]:.0f}{why}", flush=True)

if __name__ == "__main__":
    T0 = time.time()
    ts = tasks(sys.argv[2:])
    if "14" in sys.argv[2:]:
        from bench import scaling
        scaling.corpus()
    if os.environ.get("BACK"): ts = ts[::-1]
    print(len(ts), "tasks", time.time() - T0, flush=True)
    mp.set_start_method("fork")
    at = mp.Value("i", 0)
    ps = [mp.Process(target=worker, args=(ts, at)) for _ in range(int(sys.argv[1]))]
    for p in ps: p.start()
    for p in ps: p.join()
    print("all done", time.time() - T0, flush=True)
