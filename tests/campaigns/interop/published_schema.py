"""The published OpenAPI document of Open Payments, in npm @interledger/open-payments. Rafiki checks answers with it."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "@interledger/open-payments"
VERSION: Final = "7.4.0"
_SCRIPT: Final = Path(__file__).with_name("published_schema.mjs")


def complaints(installed: Path, responses: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the complaint of the published document about each response; `None` for a valid one.

    `installed` is the folder in which the package is installed. A response has `path`, `method`, `status` and `body`.
    """
    given = json.dumps({"installed": str(installed), "responses": responses})
    done = subprocess.run(["node", str(_SCRIPT), given], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found
