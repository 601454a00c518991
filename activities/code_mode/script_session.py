"""A script in its interpreter: Monty, in a child process of its own, without files, network, clock or chance.

It runs until all that it could go on with waits for calls. Results are given to it one at a time: with several at once, the
order in which Monty goes on differs from process to process.

Its methods block: call them in a thread. Monty's own asyncio classes abort some processes as these exit (1.3, 1.4).
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pydantic_monty as monty
from pydantic import JsonValue

from mulligan.schema.cut_text import cut_text
from mulligan.schema.json_limits import MOST_DEPTH

MEMORY_BYTES = 256 * 1024 * 1024
OUTPUT_CHARS = 1_000_000
"""Characters that a script may print, and that its last expression may have. The model gets the beginning of them."""
REPR_LEVELS = 50
"""How deep a last expression that is no JSON is shown."""
PRINTED_SHOWN = 2_000
"""Characters, of what a script has printed, that the model reads if the script fails."""
ARGUMENTS_CHARS = 500_000
"""Characters of the arguments of one call, as JSON: more than an answer can have is no call."""
INTEGER_BITS = 4_000
"""Of an integer that is given to a tool: Python reads and writes about 14,000."""
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


class ScriptError(Exception):
    """The script has ended without a result, or was not run.

    `kind`: as of an ErrorInfo. `detail`: what may quote the script.
    """

    def __init__(self, message: str, detail: str = "", *, kind: str = "tool_exception") -> None:
        super().__init__(message)
        self.detail, self.kind = detail, kind


def invalid_code(detail: str) -> ScriptError:
    """The error of a script that does not parse, or does not fit the types of its functions."""
    message = "The script was not run: it is no valid Python, or does not fit the types of the functions."
    return ScriptError(message, detail, kind="invalid_code")


class CallMade(NamedTuple):
    """A call that the script has made: the tool, and its arguments as JSON text."""

    tool: str
    arguments: str


@dataclass(frozen=True)
class ScriptFunction:
    """A function that a script can call: the tool, and the names of its parameters in their order.

    Without names, its one parameter is an object with all arguments, if `takes_object`.
    """

    tool: str
    parameters: list[str]
    takes_object: bool = False

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The tool's arguments.

        Raises:
            TypeError: the function has no such parameters.
        """
        names = ["arguments"] if self.takes_object else self.parameters
        if len(args) > len(names):
            raise TypeError(f"takes {len(names)} positional arguments, but {len(args)} were given")
        bound = dict(zip(names, args, strict=False))
        if twice := sorted(bound.keys() & kwargs.keys()):
            raise TypeError(f"got several values for {twice[0]!r}")
        bound |= kwargs
        if not self.takes_object:
            return bound
        value = bound.get("arguments")
        if list(bound) != ["arguments"] or not isinstance(value, dict):
            raise TypeError("takes one object")
        return value


@dataclass
class ScriptSession:
    """One script, from its start until it ends or is closed.

    Attributes:
        calls: The calls that it has made, the first one has number 1.
        delivered: The numbers of the calls whose results it has, in their order.
        is_over: Whether it has ended; `value` is then that of its last expression, as text; "" if it has none.
        printed: What it has printed, without what exceeds the limit.
    """

    functions: Mapping[str, ScriptFunction]
    max_calls: int
    calls: list[CallMade] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    is_over: bool = False
    value: str = ""
    printed: list[str] = field(default_factory=list)
    _printed_chars: int = 0
    code: str = ""
    _monty: Any = None
    _pid: int | None = None
    _waiting: Any = None
    _numbers: dict[int, int] = field(default_factory=dict)
    """The numbers of the calls without a result, by Monty's own."""

    @classmethod
    def open(
        cls,
        pool: monty.Monty,
        functions: Mapping[str, ScriptFunction],
        *,
        max_calls: int,
        timeout: float,
        seed: str,
        stubs: str | None,
    ) -> ScriptSession:
        """A session without a script. `stubs`: the types to check scripts against; None: they are not checked."""
        session = cls(functions, max_calls)
        limits = monty.ResourceLimits(
            max_feed_duration_secs=timeout,
            max_memory=MEMORY_BYTES,
            max_suspensions=SUSPENSIONS,
            max_recursion_depth=500,
        )
        policy = monty.OSPolicy(datetime=CLOCK, sleep="zero", random_start={"seed": seed})
        checkout = pool.checkout(
            script_name="script.py",
            limits=limits,
            os_policy=policy,
            type_check=stubs is not None,
            type_check_stubs=stubs,
            type_check_format="concise",
        )
        session._monty = checkout.__enter__()
        session._pid = session._monty.worker_pid
        return session

    def close(self) -> None:
        """End the session, and let its process go."""
        open_session, self._monty, self._waiting = self._monty, None, None
        if open_session is not None:
            open_session.__exit__(None, None, None)

    def kill(self) -> None:
        """End the script at once, from another thread than the one that runs it."""
        if self._monty is not None and self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def start(self, code: str) -> None:
        """Check a script, and run it until it waits or ends.

        Raises:
            ScriptError: it cannot be run, or has failed.
        """
        self.code = code
        self._monty.feed_run(PRELUDE, skip_type_check=True)
        self._advance(lambda: self._monty.feed_start(code, print_callback=self._print))

    def deliver(self, number: int, text: str, value: JsonValue, *, failed: bool) -> None:
        """Give the script the result of a call that it waits for, and run it until it waits or ends.

        Raises:
            KeyError: it does not wait for this call.
            ScriptError: it has failed.
        """
        by_number = {number: own for own, number in self._numbers.items()}
        own = by_number[number]
        if self._waiting is None or own not in self._waiting.pending_call_ids:
            raise KeyError(number)
        del self._numbers[own]
        self.delivered.append(number)
        result = {"exc_type": _RAISED, "message": text} if failed else {"return_value": value}
        waiting, self._waiting = self._waiting, None
        self._advance(lambda: waiting.resume({own: result}))

    def _print(self, stream: str, text: str) -> None:
        del stream
        if (room := OUTPUT_CHARS - self._printed_chars) > 0:
            self.printed.append(text[:room])
        self._printed_chars += len(text)

    def _advance(self, go_on: Callable[[], Any]) -> None:
        try:
            self._run(go_on)
        except ScriptError as error:
            if printed := "".join(self.printed)[:PRINTED_SHOWN].strip():
                error.detail = "\n".join(filter(None, (error.detail, "It had printed:", printed)))
            error.detail = cut_text(error.detail, DETAIL_CHARS)
            raise

    def _run(self, go_on: Callable[[], Any]) -> None:
        try:
            snapshot = go_on()
            while True:
                if self._printed_chars > OUTPUT_CHARS:
                    raise ScriptError(f"The script has printed more than {OUTPUT_CHARS:,} characters. Print less.")
                match snapshot:
                    case monty.MontyComplete():
                        self.is_over = True
                        self.value = "" if snapshot.output is None else _shown(snapshot.output)
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
            raise invalid_code("\n".join(_faults(found, self.code.splitlines()))) from None
        except monty.MontyRuntimeError as error:
            raise _script_error(error) from None
        except monty.MontyCrashedError as error:
            raise ScriptError(
                "The script was ended: its interpreter " + ("used up its time." if error.timed_out else "crashed."),
                kind="tool_timeout" if error.timed_out else "tool_exception",
            ) from None
        except monty.MontyConversionError:
            raise ScriptError("The result of a call cannot be given to the script.") from None

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
            arguments = _json_text(function.bind(snapshot.args, snapshot.kwargs))
        except TypeError as error:
            return snapshot.resume({"exc_type": "TypeError", "message": f"{name}() {error}"})
        if len(self.calls) == self.max_calls:
            raise ScriptError(
                f"The script was ended at its call number {self.max_calls + 1:,}: a script may make {self.max_calls:,}. The "
                "calls before were carried out, as far as the script waited for them."
            )
        self.calls.append(CallMade(function.tool, arguments))
        self._numbers[snapshot.call_id] = len(self.calls)
        return snapshot.resume({"future": ...})


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


def _json_text(arguments: dict[str, Any]) -> str:
    """Arguments as JSON.

    Raises:
        TypeError: a value has no form in JSON, or they are too large.
    """
    text = json.dumps(_as_json(arguments, [ARGUMENTS_CHARS]), ensure_ascii=False)
    if len(text) > ARGUMENTS_CHARS:
        raise _TooLargeError(ARGUMENTS_CHARS)
    return text


def _shown(value: Any) -> str:
    """The value of the last expression as the model reads it: JSON if it has that form, otherwise Python's `repr`.

    Raises:
        ScriptError: it is too large.
    """
    try:
        try:
            shown = _as_json(value, [OUTPUT_CHARS])
        except _TooLargeError:
            raise
        except TypeError:
            return _Repr().repr(value)
        return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    except _TooLargeError:
        raise ScriptError(
            f"The value of the script's last expression has more than {OUTPUT_CHARS:,} characters. Print less."
        ) from None
    except ValueError:  # an integer with more digits than Python writes
        raise ScriptError("The script's last expression has a number that is too large to be written.") from None


class _Repr(reprlib.Repr):
    """Python's `repr` with all items. Only the text is bounded, and how deep it is nested."""

    def __init__(self) -> None:
        super().__init__()
        for name in [name for name in vars(self) if name.startswith("max")]:
            setattr(self, name, OUTPUT_CHARS)
        self.maxlevel = REPR_LEVELS
        self._room = OUTPUT_CHARS

    def repr1(self, x: Any, level: int) -> str:
        self._room -= len(x) if isinstance(x, str | bytes) else 2
        if self._room < 0:
            raise _TooLargeError(OUTPUT_CHARS)
        return super().repr1(x, level)

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """In the dict's order; that of the base class is sorted."""
        if x and level <= 0:
            return "{...}"
        return f"{{{', '.join(f'{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}' for k, v in x.items())}}}"


class _TooLargeError(TypeError):
    def __init__(self, most: int) -> None:
        super().__init__(f"was given more than {most:,} characters of arguments")


def _as_json(value: Any, room: list[int], depth: int = 0) -> JsonValue:
    """The value as JSON. `room`: how many characters and values it may have. It is used up.

    A list that a script has put into others many times is one object here, but many times as much JSON.

    Raises:
        TypeError: it has no form in JSON, is nested too deeply, or has more than there is room for.
    """
    room[0] -= len(value) if isinstance(value, str) else 2
    if room[0] < 0:
        raise _TooLargeError(ARGUMENTS_CHARS)
    if depth > MOST_DEPTH:
        raise TypeError("was given a value that is nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"was given {value}, for which JSON has no number")
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
        raise TypeError(f"was given an integer with more than {INTEGER_BITS:,} bits")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_as_json(each, room, depth + 1) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        room[0] -= sum(map(len, value))
        return {key: _as_json(each, room, depth + 1) for key, each in value.items()}
    raise TypeError(
        f"was given a {type(value).__name__}; give texts, numbers, booleans, None, lists and dicts of texts"
    )
