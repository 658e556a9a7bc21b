"""The machine code of the chosen configurations for the other shapes, masks and types that
`correct` and `speed` launch."""
from bench.gpu import compile as compiling
from bench.gpu import correct, speed
from bench.gpu.kernels import capability, fitting
from bench.gpu.settings import SETTINGS

measure = compiling.measure
WIDTHS = (16, 32, 64, 128, 256)


def complete(configs: list[list], setting, found, width: int, bits: int,
             causal: bool) -> list[list]:
    "These configurations, and for each other kernel the one that it would take by itself."
    if setting.candidates: return configs
    rest = [kernel for kernel in ("forward", "dkdv", "dq") if kernel not in [c[0] for c in configs]]
    return (configs + [fitting(kernel, width, bits, causal, ("descriptors", "pointers"),
                               capability(found))[0] for kernel in rest])


def cases(name: str, found) -> list[dict]:
    "What `compile` has not made, one launch of each signature."
    setting, made = SETTINGS[name], []
    for case in speed.cases(name, found) + correct.cases(name, found):
        if case["kind"] == "varlen":
            made.append(correct.packed_launch(case) | {"chip": compiling.chip(setting, found)})
            continue
        for shape, dtype, causal, window in (speed if case["kind"] in speed.KINDS
                                             else correct).launched(name, case):
            width = next(w for w in WIDTHS if w >= shape[-1])
            configs = complete(case.get("configs", []), setting, found, width,
                               32 if dtype == "float32" else 16, causal or bool(window))
            made += compiling.launches(setting, compiling.chip(setting, found), (*shape[:5], width),
                                       dtype, causal, window, configs)
    return compiling.distinct(made, compiling.cases(name, found))[:setting.compiled]
