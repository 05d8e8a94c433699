"""One target under atheris, in its own process: `python -m campaigns.fuzz.engine TARGET FOLDER [OPTION...]`.

The only module here that knows atheris, which has no types, and is there where the group `fuzz` is installed.
"""

import importlib
import sys
from pathlib import Path
from typing import Any, Final

INSTRUMENTED: Final = ["incoming_payments", "http_sf"]  # whose branches count as new ground


def main(name: str, folder: Path, options: list[str]) -> None:
    """Fuzz the target called `name` from its seeds, which are put into `folder`, until libFuzzer ends the process."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=INSTRUMENTED):
        targets = importlib.import_module("fuzz.targets")
        seeds = importlib.import_module("fuzz.seeds")
    target = targets.TARGETS[name]
    seeds.write(name, folder / "seeds", bytes_max=target.bytes_max)
    (folder / "dictionary").write_text(seeds.dictionary(), "ascii")
    ours = [f"-max_len={target.bytes_max}", f"-dict={folder / 'dictionary'}", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *ours, *options, str(folder / "seeds")], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
