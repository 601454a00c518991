"""The agent `coder`, served by a worker that dies as soon as it begins a script."""

from __future__ import annotations

import os
import signal

from mulligan.activities.code_mode.script_session import ScriptSession
from tests.support.code_agents import coder

__all__ = ["coder"]


def _die(session: ScriptSession, code: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


ScriptSession.start = _die  # type: ignore[assignment]
