"""Compiles modules once, not in each of the hundred processes that tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "bytecode"


def keep_bytecode() -> None:
    """If Python writes no bytecode (`PYTHONDONTWRITEBYTECODE`, as in images and on CI), write it to a separate folder.

    Applies to child processes too. Otherwise commands spend half of their time compiling, and pytest most of its collection.
    """
    if not sys.dont_write_bytecode:
        return
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(FOLDER)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(FOLDER)
