"""What nvidia-smi says of the GPU: once what it is, and twice a second how it is. Without it the
run goes on, and says so."""
import subprocess
import threading
import time
from pathlib import Path
from statistics import median, quantiles

FACTS = ("name", "compute_cap", "driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem",
         "memory.total")
SAMPLED = {"clocks.sm": "clock MHz", "power.draw": "power W", "temperature.gpu": "temperature °C"}


def asking(fields, *more: str) -> list[str]:
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits",
            "--id=0", *more]


def facts() -> dict[str, str]:
    "Name, compute capability, driver and limits of the first GPU; nothing if nobody can say."
    try:
        said = subprocess.run(asking(FACTS), capture_output=True, text=True, timeout=20,
                              check=True).stdout
    except (OSError, subprocess.SubprocessError): return {}
    found = [value.strip() for value in said.splitlines()[0].split(",")] if said.strip() else []
    return dict(zip(FACTS, found)) if len(found) == len(FACTS) else {}


def middle(values: list[float]) -> dict:
    """A spread, as tfmlib.workbench.spread gives it, without NumPy: this process imports as
    little as it can."""
    if len(values) == 1: return {"median": float(values[0]), "n": 1}
    tenths = quantiles(values, n=10, method="inclusive")
    return {"median": float(median(values)), "q10": float(tenths[0]), "q90": float(tenths[-1]),
            "n": len(values)}


class Samples:
    "Clock, power and temperature, sampled in the background while the run goes on."
    def __init__(self, path: Path, every: int = 500):
        self.found: list[tuple[float, list[float]]] = []
        try:
            self.process = subprocess.Popen(asking(SAMPLED, f"-lms={every}"),
                                            stdout=subprocess.PIPE,
                                            stderr=subprocess.DEVNULL, text=True)
        except OSError: self.process = None
        else: threading.Thread(target=self.listen, args=(path,), daemon=True).start()

    def listen(self, path: Path) -> None:
        for line in self.process.stdout:
            try: values = [float(x) for x in line.split(",")]
            # a field that this GPU does not have
            except ValueError: continue
            if len(values) != len(SAMPLED): continue
            self.found.append((time.monotonic(), values))
            try:
                with path.open("a") as file:
                    file.write(f"{time.time():.1f},{','.join(f'{x:g}' for x in values)}\n")
            # the journal says that the disk is full
            except OSError: pass

    def between(self, first: float, last: float) -> dict[str, dict]:
        "The spread of what was sampled in a span of time; for a short one the sample before it."
        inside = ([values for t, values in self.found if first <= t <= last]
                  or [values for t, values in self.found if t <= last][-1:])
        return ({name: middle([values[i] for values in inside])
                 for i, name in enumerate(SAMPLED.values())} if inside else {})

    def end(self) -> None:
        if self.process is not None: self.process.kill(); self.process.wait()
