"""Run one target under atheris, in a process of its own.

    python -m campaigns.fuzz.engine TARGET FOLDER [OPTION...]        with PYTHONPATH=tests

Only this module imports atheris. The package has no types, and is installed with the group `fuzz` only.
"""

import importlib
import sys
from pathlib import Path
from typing import Any, Final

INSTRUMENTED: Final = ["incoming_payments", "http_sf"]  # the fuzzer looks for new branches in these packages


def main(name: str, folder: Path, options: list[str]) -> None:
    """Fuzz the target called `name` until libFuzzer ends the process. Its seeds are written to `folder`."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=INSTRUMENTED):
        targets = importlib.import_module("campaigns.fuzz.targets")
        seeds = importlib.import_module("campaigns.fuzz.seeds")
    target = targets.TARGETS[name]
    seeds.write(name, folder / "seeds", bytes_max=target.bytes_max)
    (folder / "dictionary").write_text(seeds.dictionary(), "ascii")
    ours = [f"-max_len={target.bytes_max}", f"-dict={folder / 'dictionary'}", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *ours, *options, str(folder / "seeds")], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
