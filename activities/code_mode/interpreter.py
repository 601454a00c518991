"""A script's interpreter: Monty, in a child process of its own, without files, network, clock or chance.

It runs in a process between the worker and Monty (interpreter_process.py), as what a script gives to its host can stop a
process: a text of 100 MB, or a tuple whose hash takes hours.

It runs until all that it could go on with waits for calls. Results are given to it one at a time: with several at once, the
order in which Monty goes on differs from process to process.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pydantic_monty as monty
from pydantic import JsonValue

from mulligan.activities.code_mode.interpreter_news import CallMade, InterpreterNews
from mulligan.activities.code_mode.script_error import ScriptError, invalid_code
from mulligan.activities.code_mode.script_function import ScriptFunction
from mulligan.activities.code_mode.script_json import json_of
from mulligan.activities.code_mode.shown_value import shown_value
from mulligan.activities.tool_running.process_tree import memory_of
from mulligan.schema.cut_text import cut_text

MEMORY_BYTES = 256 * 1024 * 1024
OUTPUT_CHARS = 1_000_000
"""Characters that a script may print, and that its last expression may have. The model gets the beginning of them."""
PRINTED_SHOWN = 2_000
"""Characters, of what a script has printed, that the model reads if the script fails."""
ARGUMENTS_CHARS, ALL_ARGUMENTS_CHARS = 500_000, 10_000_000
"""Characters of the arguments of one call, as JSON: more than an answer can have is no call. And those of all calls."""
SUSPENSIONS = 20_000
"""How often the interpreter may ask its host for something: calls, names, results."""
DETAIL_CHARS, FAULTS_SHOWN, LINE_CHARS = 4_000, 20, 200
"""Characters of what a model reads of a failure beside its message, how many mistakes of a script that is not run, and
characters of a line that is shown."""
_FAULT = re.compile(r"script\.py:(\d{1,9}):(\d{1,9}):(.*)")
CLOCK = datetime(2000, 1, 1, tzinfo=UTC)
"""What a script's clock says: when it is run again, it must decide alike."""
PRELUDE = "import binascii\nToolError = binascii.Incomplete\n"
"""`ToolError`: Monty has no derived classes. Its host can raise this type of exception, which nothing else raises."""
_RAISED, _SHOWN = "binascii.Incomplete", "ToolError"


@dataclass(frozen=True)
class ScriptLimits:
    """What a script may do, and how it is run.

    `timeout`: seconds of the interpreter's own time. `seed`: of its random numbers. `stubs`: the types to check the script
    against; None: they are not checked.
    """

    max_calls: int
    timeout: float
    seed: str
    stubs: str | None


@dataclass
class Interpreter:
    """One script. What it has done since it was last asked is in `news`, which is then emptied."""

    functions: Mapping[str, ScriptFunction]
    limits: ScriptLimits
    news: InterpreterNews = field(default_factory=InterpreterNews)
    _printed: str = ""
    """The beginning of what it has printed."""
    _printed_chars: int = 0
    _calls: int = 0
    _arguments_chars: int = 0
    _code: str = ""
    _monty: Any = None
    _pid: int | None = None
    _waiting: Any = None
    _numbers: dict[int, int] = field(default_factory=dict)
    """The numbers of the calls without a result, by Monty's own."""

    def open(self, pool: monty.Monty) -> None:
        """Start the interpreter, which has no script yet."""
        try:
            self._monty = self._checked_out(pool, self.limits.stubs)
        except (
            monty.MontyRuntimeError
        ):  # it cannot read the types of a tool, such as a union of 200: validation remains
            self._monty = self._checked_out(pool, None)
        self._pid = self._monty.worker_pid

    def _checked_out(self, pool: monty.Monty, stubs: str | None) -> Any:
        return pool.checkout(
            script_name="script.py",
            limits=monty.ResourceLimits(
                max_feed_duration_secs=self.limits.timeout,
                max_memory=MEMORY_BYTES,
                max_suspensions=SUSPENSIONS,
                max_recursion_depth=500,
            ),
            os_policy=monty.OSPolicy(datetime=CLOCK, sleep="zero", random_start={"seed": self.limits.seed}),
            type_check=stubs is not None,
            type_check_stubs=stubs,
            type_check_format="concise",
        ).__enter__()

    def start(self, code: str) -> None:
        """Check a script, and run it until it waits or ends.

        Raises:
            ScriptError: it cannot be run, or has failed.
        """
        self._code = code
        self._monty.feed_run(PRELUDE, skip_type_check=True)
        self._advance(lambda: self._monty.feed_start(code, print_callback=self._print))

    def waits_for(self, number: int) -> bool:
        """Whether the script waits for the result of a call."""
        own = self._own(number)
        return self._waiting is not None and own in self._waiting.pending_call_ids

    def _own(self, number: int) -> int | None:
        """Monty's number of a call without a result."""
        return next((own for own, each in self._numbers.items() if each == number), None)

    def deliver(self, number: int, text: str, value: JsonValue, *, failed: bool) -> None:
        """Give the script the result of a call that it waits for, and run it until it waits or ends.

        Raises:
            ScriptError: it has failed.
        """
        own = self._own(number)
        assert own is not None
        del self._numbers[own]
        result = {"exc_type": _RAISED, "message": text} if failed else {"return_value": value}
        waiting, self._waiting = self._waiting, None
        self._advance(lambda: waiting.resume({own: result}))

    @property
    def memory(self) -> int:
        """Bytes that it holds; 0 where the system does not say."""
        return memory_of(self._pid) if self._pid is not None else 0

    def _print(self, stream: str, text: str) -> None:
        del stream
        text = text[: max(0, OUTPUT_CHARS + 1 - self._printed_chars)]
        self._printed_chars += len(text)
        self._printed += text[: max(0, PRINTED_SHOWN - len(self._printed))]
        if text:
            self.news.printed.append(text)
        if self._printed_chars > OUTPUT_CHARS and self._pid is not None:
            with suppress(ProcessLookupError):  # Monty goes on printing whatever is raised here
                os.kill(self._pid, signal.SIGKILL)

    def _advance(self, go_on: Callable[[], Any]) -> None:
        try:
            self._run(go_on)
        except ScriptError as error:
            if printed := self._printed.strip():
                error.detail = "\n".join(filter(None, (error.detail, "It had printed:", printed)))
            error.detail = cut_text(error.detail, DETAIL_CHARS)
            raise

    def _run(self, go_on: Callable[[], Any]) -> None:
        try:
            snapshot = go_on()
            while True:
                self._check_printed()
                match snapshot:
                    case monty.MontyComplete():
                        output = snapshot.output
                        self.news.value = "" if output is None else shown_value(output, OUTPUT_CHARS)
                        self.news.is_over = True
                        return
                    case monty.FutureSnapshot():
                        self._waiting = snapshot
                        return
                    case monty.NameLookupSnapshot():
                        snapshot = self._look_up(snapshot)
                    case _:
                        snapshot = self._call(snapshot)
        except (monty.MontyTypingError, monty.MontySyntaxError) as error:
            found = error.display() if isinstance(error, monty.MontyTypingError) else str(error)
            raise invalid_code("\n".join(_faults(found, self._code.splitlines()))) from None
        except monty.MontyRuntimeError as error:
            raise _script_error(error) from None
        except monty.MontyCrashedError as error:
            self._check_printed()
            raise ScriptError(
                "The script was ended: its interpreter " + ("used up its time." if error.timed_out else "crashed."),
                kind="tool_timeout" if error.timed_out else "tool_exception",
            ) from None
        except monty.MontyConversionError:
            raise ScriptError("The result of a call cannot be given to the script.") from None

    def _check_printed(self) -> None:
        if self._printed_chars > OUTPUT_CHARS:
            raise ScriptError(f"The script has printed more than {OUTPUT_CHARS:,} characters. Print less.")

    def _look_up(self, snapshot: Any) -> Any:
        name = snapshot.variable_name
        if snapshot.object_id is not None or name not in self.functions:
            return snapshot.resume()

        def function() -> None:
            """Stands for the function; the host sees each call of it."""

        function.__name__ = name
        return snapshot.resume(value=function)

    def _call(self, snapshot: Any) -> Any:
        if snapshot.is_os_function:
            return snapshot.resume_not_handled()
        name = str(snapshot.function_name)
        if (function := self.functions.get(name)) is None:
            return snapshot.resume({"exc_type": "NameError", "message": f"name {name!r} is not defined"})
        try:
            arguments = json_of(function.bind(snapshot.args, snapshot.kwargs), ARGUMENTS_CHARS)
        except TypeError as error:
            return snapshot.resume({"exc_type": "TypeError", "message": f"{name}() {error}"})
        self._count(arguments)
        self.news.calls.append(CallMade(function.tool, arguments))
        self._numbers[snapshot.call_id] = self._calls
        return snapshot.resume({"future": ...})

    def _count(self, arguments: str) -> None:
        """Count a call.

        Raises:
            ScriptError: it is one more than a script may make, or all have too many arguments.
        """
        most = self.limits.max_calls
        if self._calls == most:
            raise _ended_at_call(most + 1, f"a script may make {most:,}")
        self._calls += 1
        self._arguments_chars += len(arguments)
        if self._arguments_chars > ALL_ARGUMENTS_CHARS:
            raise _ended_at_call(
                self._calls, f"the arguments of all its calls may have {ALL_ARGUMENTS_CHARS:,} characters"
            )


def _ended_at_call(number: int, why: str) -> ScriptError:
    return ScriptError(
        f"The script was ended at its call number {number:,}: {why}. The calls before were carried out, as far as the "
        "script waited for them."
    )


def _script_error(error: monty.MontyRuntimeError) -> ScriptError:
    """What a script has raised, with the line. A limit has no traceback, or none that helps."""
    inner, frames = error.exception(), error.traceback()
    says = str(error).replace(_RAISED, _SHOWN, 1)
    if isinstance(inner, TimeoutError) and not frames:
        return ScriptError("The script was ended: it ran too long, without the time of its calls.", kind="tool_timeout")
    if isinstance(inner, MemoryError):
        return ScriptError(f"The script was ended: it needs more memory than {MEMORY_BYTES // 2**20} MB.")
    lines = [f"line {frame.line}: {(frame.source_line or '').strip()[:LINE_CHARS]}" for frame in frames]
    shown = [*lines[:2], *(["…"] if len(lines) > 6 else []), *lines[2:][-4:]]
    where = f" at line {frames[-1].line}" if frames else ""
    return ScriptError(f"The script failed{where}.", "\n".join([*shown, says]))


def _faults(found: str, code: list[str]) -> Iterator[str]:
    """What was found, as the model reads it: each as `line 3, column 7: what is wrong`, with the line below it."""
    for line in found.strip().splitlines()[:FAULTS_SHOWN]:
        match = _FAULT.fullmatch(line)
        yield f"line {match[1]}, column {match[2]}:{match[3]}" if match else line
        if match and 0 < int(match[1]) <= len(code):
            yield f"    {cut_text(code[int(match[1]) - 1].strip(), LINE_CHARS)}"
