"""A module that has a second thread from its import on, so that a process with it must not be forked."""

from __future__ import annotations

import os
import threading

IMPORTED_BY = os.getpid()
threading.Thread(target=threading.Event().wait, daemon=True).start()


def imported_here() -> bool:
    """Whether this process has imported the module itself."""
    return os.getpid() == IMPORTED_BY
