"What the stand-in lacks: it is refused by name, and remembered for the judge."

SENTENCE = "not in the page's stand-in for PyTorch; run this one in Jupyter or Colab"
seen: list[str] = []                   # what was asked for since the judge last looked


class NotInPage(AttributeError, NotImplementedError):
    "PyTorch has it, or may have it; the stand-in does not."


def absent(name: str) -> NotInPage:
    "The error that refuses `name`."
    seen.append(name)
    return NotInPage(f"{name}: {SENTENCE}")


def refuser(module: str):
    "The `__getattr__` of a module: every name that it lacks is refused."
    def lacking(name: str):
        if name.startswith("__"):
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        raise absent(f"{module}.{name}")
    return lacking
