"""One call of a GPU run whose stages are given by name: python tests/gpu_call.py FOLDER SETTING
SECONDS PATIENCE NAME[*WORKERS]=MODULE ..."""
import sys
from pathlib import Path

from bench.gpu import Stage
from bench.gpu.run import Run, whole

if __name__ == "__main__":
    folder, setting, seconds, patience, *named = sys.argv[1:]
    told = [text.replace("=", "*").split("*") for text in named]
    stages = tuple(Stage(name, module, 0, 1000, float(patience), int(*workers or [1]), timed=True)
                   for name, *workers, module in told)
    try: run = Run(Path(folder), stages, setting, float(seconds), None)
    except ValueError as error: sys.exit(str(error))
    sys.exit(whole(run))
