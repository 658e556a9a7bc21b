"""What the script of a figure computes, asked in Node."""
import json
import shutil
import subprocess
from importlib.resources import files

import pytest

PROGRAM = """
import * as script from "./script.mjs";
import fs from "fs";
const given = JSON.parse(fs.readFileSync(0));
console.log(JSON.stringify(%s));
"""


def in_node(tmp_path, name: str, expression: str, given):
    "An expression of `given` and of all that this script among the assets exports, as `script`."
    if shutil.which("node") is None: pytest.skip("needs node")
    code = (files("tfmlib") / "assets" / name).read_text(encoding="utf-8")
    (tmp_path / "script.mjs").write_text(code, encoding="utf-8")
    (tmp_path / "run.mjs").write_text(PROGRAM % expression, encoding="utf-8")
    said = subprocess.run(["node", str(tmp_path / "run.mjs")], input=json.dumps(given),
                          capture_output=True, encoding="utf-8", check=True)
    return json.loads(said.stdout)
