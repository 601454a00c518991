"""Runs one script in an interpreter, and bounds what it may use and return: time, memory and characters.

Its methods block: call them in a thread.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from mulligan.activities.code_mode.interpreter import ScriptLimits
from mulligan.activities.code_mode.interpreter_child import TOO_LARGE
from mulligan.activities.code_mode.interpreter_news import CallMade, InterpreterNews
from mulligan.activities.code_mode.interpreter_process import InterpreterLost, InterpreterProcess
from mulligan.activities.code_mode.script_error import ScriptError
from mulligan.activities.code_mode.script_function import ScriptFunction

OPEN_SECONDS = 60.0
"""For the start of an interpreter, which does not count as the script's time."""
GRACE_SECONDS = 1.0
"""So much later than the interpreter itself, which says where the script was, its process is ended."""
_NEWS = TypeAdapter(InterpreterNews)


@dataclass
class ScriptSession:
    """One script, from its start until it ends or is closed.

    Attributes:
        calls: The calls that it has made, the first one has number 1.
        delivered: The numbers of the calls whose results it has, in their order.
        is_over: Whether it has ended; `value` is then that of its last expression, as text; "" if it has none.
        printed: What it has printed, without what exceeds the limit.
        memory: Bytes that its processes and the arguments of its calls hold.
    """

    calls: list[CallMade] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    is_over: bool = False
    value: str = ""
    printed: list[str] = field(default_factory=list)
    memory: int = 0
    code: str = ""
    _process: InterpreterProcess | None = None
    _arguments_bytes: int = 0
    _left: float = 0.0
    """Seconds that it has left."""

    @classmethod
    def open(
        cls,
        _pool: object,
        functions: Mapping[str, ScriptFunction],
        *,
        max_calls: int,
        timeout: float,
        seed: str,
        stubs: str | None,
    ) -> ScriptSession:
        """A session without a script, in a process of its own: the first argument is not read.

        `stubs`: the types to check scripts against; None: they are not checked.

        Raises:
            InterpreterLost, TimeoutError: its interpreter did not start.
        """
        process = InterpreterProcess.begin()
        session = cls(_process=process, _left=timeout + GRACE_SECONDS)
        setup = {
            "functions": {name: asdict(each) for name, each in functions.items()},
            "limits": asdict(ScriptLimits(max_calls, timeout, seed, stubs)),
        }
        try:
            process.ask(json.dumps(setup).encode(), OPEN_SECONDS)
        except TimeoutError:
            process.give_up()
            raise
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """End the session and its processes, from any thread."""
        if self._process is not None:
            self._process.end()

    def start(self, code: str) -> None:
        """Check a script, and run it until it waits or ends.

        Raises:
            ScriptError: it cannot be run, or has failed.
        """
        self.code = code
        self._ask({"code": code})

    def deliver(self, number: int, text: str, value: JsonValue, *, failed: bool) -> None:
        """Give the script the result of a call that it waits for, and run it until it waits or ends.

        Raises:
            KeyError: it does not wait for this call.
            ScriptError: it has failed.
        """
        if self._ask({"number": number, "text": text, "value": value, "failed": failed}).is_refused:
            raise KeyError(number)
        self.delivered.append(number)

    def _ask(self, request: Mapping[str, Any]) -> InterpreterNews:
        """Let the interpreter do something. The time until it has answered is the script's, whatever it was spent on.

        Raises:
            ScriptError: the script has failed.
        """
        assert self._process is not None
        message, begun = json.dumps(request).encode(), time.monotonic()
        try:
            news = _NEWS.validate_json(self._process.ask(message, self._left))
        except TimeoutError:
            raise ScriptError(
                "The script was ended: it ran too long, without the time of its calls.", kind="tool_timeout"
            ) from None
        except (InterpreterLost, ValidationError):
            raise ScriptError(TOO_LARGE) from None
        self._left -= time.monotonic() - begun
        self.calls += news.calls
        self.printed += news.printed
        self._arguments_bytes += sum(sys.getsizeof(each.arguments) for each in news.calls)
        self.is_over, self.value, self.memory = news.is_over, news.value, news.memory + self._arguments_bytes
        if news.failure is not None:
            raise ScriptError(news.failure.message, news.failure.detail, kind=news.failure.kind)
        return news
