"""Print one extra of pyproject.toml as requirement lines, without tfmlib and what it needs: python tools/extra.py book"""
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
print("\n".join(project["optional-dependencies"][sys.argv[1]]))
