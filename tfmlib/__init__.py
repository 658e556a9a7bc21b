"The library that the chapters of The Executable Transformer write."

__version__ = "0.1.0"


def offer(package: str, modules: dict[str, str]) -> tuple:
    "What a package needs to import each of its modules when a name of it is first asked for; modules: module -> its names."
    from importlib import import_module
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str):
        if name not in homes: raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)
    return get, lambda: sorted(homes), [*homes]
