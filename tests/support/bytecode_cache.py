"""Modules are compiled once, not by each of the hundred processes that tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "bytecode"


def keep_bytecode() -> None:
    """Where Python writes none (`PYTHONDONTWRITEBYTECODE`, as in images and on CI), keep it in a folder apart; children too.

    Else a command spends half of its time with compiling, and pytest most of what it takes to collect.
    """
    if not sys.dont_write_bytecode:
        return
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(FOLDER)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(FOLDER)
