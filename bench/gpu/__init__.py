"""Every measurement that needs a GPU, in one unattended run: python -m bench --gpu --out FOLDER
[--commit ID] [--seconds 570] [STAGE ...]

The run works through the stages below. A stage is a list of cases and a function that makes rows of
a case. Cases are computed in worker processes; the process that was started hands them out, never
touches the GPU, and writes each row to FOLDER/rows.jsonl as it comes. Whatever fails becomes an
entry with its reason: an exception, a number that is not finite, a worker that dies, a case that
does not end. Its worker is replaced, since after one CUDA error all calls of a process fail, and
the case is tried again without the contestant that was running. The same command with the same
folder goes on where the last call ended; what failed is tried once more.

The times are those of a run on one H200 with 16 cores. One call has 570 seconds, and the whole
takes about 1,200: three or four calls make a record. No stage begins a case beyond its share of a
call while others wait; what time is left at the end goes to those that were cut.

| stage        | makes                                                                  | expected |
share |
|--------------|------------------------------------------------------------------------|----------|-------|
| compile      | the machine code of all that may be chosen, and of decoding             |     18 s
|  90 s |
| choose       | milliseconds of every configuration, each that may hang tried first     |     29 s
|  90 s |
| settle       | the machine code for the other shapes, masks and types of the chosen    |     21 s
|  40 s |
| correct      | errors against 64 bits, repetition, poisoned margins, packing, memory   |     30 s
| 130 s |
| speed        | milliseconds and memory of the chosen kernels and their rivals          |     65 s
| 300 s |
| decode       | few queries over many keys                                             |     12 s |
60 s |
| flex         | FlexAttention with its options tuned                                   |     92 s |
120 s |
| translators  | a training step of chapter 8's translators                             |     46 s |
90 s |
| utilisation  | a training step of chapter 1's LSTM and transformer                     |     55 s
|  90 s |
| accounting   | chapter 13: peak memory of a training step, decoding by batch size      |     50 s
|  60 s |
| scaling      | chapter 14: the losses of wider decoders after more tokens              |    600 s
| 400 s |
| cache        | chapter 16: one more token with and without a cache                     |     83 s
|  40 s |
| sparse       | chapter 19: attention by lists of blocks, and FlexAttention's           |    110 s
| 140 s |
| state        | chapter 20: one more token after a cache, a state, and both             |     20 s
|  40 s |
| experts      | chapter 21: a layer of experts in a loop, sorted, and grouped           |     15 s
|  40 s |

At the end of every call the bars are judged from the rows, printed, and written to
FOLDER/judged.md.
"""
from dataclasses import dataclass

CALL = 570.                    # seconds of one call


@dataclass(frozen=True)
class Stage:
    "One kind of work."
    name: str
    # has cases(setting, found) -> the cases, as JSON has them, and measure(setting, case, without,
    # say) -> rows
    module: str
    expected: float            # seconds on an H200 with 16 cores
    share: float               # seconds of a call of 570 after which other stages go first
    patience: float            # seconds for one case
    workers: int = 1           # 0: as many as there are cores
    timed: bool = False        # its rows carry the GPU's clock, power and temperature
    # what it makes stays on the machine, and another machine needs it again
    here: bool = False
    # where a case did not end, others that agree with it in these fields are not tried
    grouped_by: tuple[str, ...] = ()


STAGES = (
    Stage("compile", "bench.gpu.compile", 18, 90, 60, workers=0, here=True),
    Stage("choose", "bench.gpu.choose", 29, 90, 20, grouped_by=("first", "kernel", "way")),
    Stage("settle", "bench.gpu.settle", 21, 40, 60, workers=0, here=True),
    Stage("correct", "bench.gpu.correct", 30, 130, 40),
    Stage("speed", "bench.gpu.speed", 65, 300, 40, timed=True),
    Stage("decode", "bench.gpu.decode", 12, 60, 40, timed=True),
    Stage("flex", "bench.gpu.flex", 92, 120, 90, timed=True),
    Stage("translators", "bench.gpu.translators", 46, 90, 60, timed=True),
    Stage("utilisation", "bench.gpu.utilisation", 55, 90, 60, timed=True),
    Stage("accounting", "bench.gpu.accounting", 50, 60, 60, timed=True),
    Stage("scaling", "bench.gpu.scaling", 600, 400, 300),
    Stage("cache", "bench.gpu.cache", 83, 40, 40, timed=True),
    Stage("sparse", "bench.gpu.sparse", 110, 140, 90, timed=True),
    Stage("state", "bench.gpu.state", 20, 40, 120, timed=True),
    Stage("experts", "bench.gpu.experts", 15, 40, 40, timed=True),
)
RECORDS = {                    # what the folder becomes: the record's name -> its stages
    "flash_correct_gpu": ("correct",),
    "flash_gpu": ("choose", "speed", "decode", "flex"),
    "translators_gpu": ("translators",),
    "utilisation_gpu": ("utilisation",),
    "accounting_gpu": ("accounting",),
    "scaling_gpu": ("scaling",),
    "cache_speed_gpu": ("cache",),
    "sparse_gpu": ("sparse",),
    "state_speed_gpu": ("state",),
    "experts_gpu": ("experts",),
}
SEED = 0
