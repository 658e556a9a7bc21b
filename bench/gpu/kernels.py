"""The book's kernels as the stages of a run use them: which configurations there are, which one
a case asks for, what had to be compiled."""
from types import SimpleNamespace
from unittest.mock import patch

WAYS = ("descriptors", "pointers", "specialised", "gluon")
# these may never return: each is tried alone first
ALONE = ("specialised", "gluon")
COUNTED = {"misses": 0}


def load():
    "The module of the kernels; from now on compilations are counted."
    import triton

    from tfmlib.flash_attention_gpu import kernels as flash_kernels
    def on_compilation(*, cache_hit: bool, **_) -> None: COUNTED["misses"] += not cache_hit
    triton.knobs.compilation.listener = on_compilation
    if flash_kernels.interpreted():
        from .interpreter import without_repeats
        without_repeats()
    return flash_kernels


def misses() -> int:
    "Kernels that were compiled since last asked."
    found, COUNTED["misses"] = COUNTED["misses"], 0
    return found


def fitting(kernel: str, width: int, bits: int, causal: bool, ways: tuple = WAYS,
            capability: tuple = (9, 0)) -> list[list]:
    """The rows of the kernels' table that may run on a GPU of this capability, without the GPU:
    what `flash_kernels.fitting` says there."""
    from tfmlib.flash_attention_gpu import kernels
    q = SimpleNamespace(is_cuda=True, device=None, shape=(1, 1, 1, width),
                        element_size=lambda: bits // 8)
    with patch("torch.cuda.get_device_capability",
               lambda device: capability), patch("torch.cuda.get_device_name",
                                                 lambda device: "nobody's"), \
         patch.object(kernels, "interpreted", lambda: False), patch.dict(kernels.PREFERRED,
                 clear=True):
        return [list(c) for c in kernels.fitting(kernel, q, causal, ways)]


def capability(found) -> tuple[int, int]:
    "What nvidia-smi said of the GPU; that of an H200 where it could not say."
    said = found.last("call").get("card", {}).get("compute_cap", "9.0").split(".")
    return int(said[0]), int(said[1])


def candidates(setting, found, kernel: str, width: int, causal: bool) -> list[list]:
    """The configurations that are timed for heads of a width: the table's rows for it, not those
    for wider heads."""
    if setting.candidates:
        return [[kernel, *how] for name, *how in setting.candidates if name == kernel]
    rows = fitting(kernel, width, 16, causal, WAYS, capability(found))
    return [list(c) for c in dict.fromkeys(map(tuple, rows)) if c[2] == rows[0][2]]


def named(config) -> str:
    "A configuration in words."
    kernel, way, _, _, _, rows, cols, warps, stages = config
    return f"{kernel}, {way} {rows}×{cols}, {warps} warps, {stages} stages"


def use(kernels, configs: list[list], width: int, causal: bool) -> None:
    "Let the kernels run with these configurations, and with their own choice where none is given."
    global SMALL
    kernels.PREFERRED.clear()
    if SMALL is None: SMALL = dict(kernels.SMALL)
    kernels.SMALL.update(SMALL)
    for row in configs:
        config = kernels.Config(*row)
        if kernels.interpreted(): kernels.SMALL[config.kernel] = config
        else: kernels.prefer(config, width, causal)


SMALL = None                   # what the interpreter runs with before anything is chosen
