"""Values and scripts as a model may write them: nested, shared many times over, with long texts and large numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from mulligan.activities.code_mode.interpreter import ARGUMENTS_CHARS, OUTPUT_CHARS
from mulligan.activities.code_mode.script_error import ScriptError
from mulligan.activities.code_mode.script_function import ScriptFunction
from mulligan.activities.code_mode.script_json import INTEGER_BITS, TooLargeError, json_of
from mulligan.activities.code_mode.script_session import ScriptSession
from mulligan.activities.code_mode.shown_value import shown_value
from mulligan.schema.json_limits import MOST_DEPTH

MOST = 2_000
"""Characters that a value may have here. What a limit is does not matter, as long as values are around it."""

_ATOMS = st.sampled_from(
    [None, True, 0, -7, 10**300, 10**1200, 1.5, 1e308, "", "a", "\0" * 50, '"\\\n', "é\u2028", "x" * 700, b"", b"\xff" * 90, 1j]
)  # fmt: skip
_KINDS = st.sampled_from(["list", "tuple", "dict", "keyed", "set", "frozenset", "repeat", "twice", "wide"])
_STEP = st.tuples(_KINDS, st.lists(st.integers(0, 30), max_size=4), st.integers(0, 400))


@st.composite
def shared_values(draw: st.DrawFn) -> Any:
    """A value whose parts are in it many times, each as one object."""
    values: list[Any] = draw(st.lists(_ATOMS, min_size=1, max_size=5))
    for kind, chosen, count in draw(st.lists(_STEP, max_size=14)):
        values.append(_made(kind, [values[-1 - number % len(values)] for number in chosen] or values[-1:], count))
    return values[-1]


def _made(kind: str, parts: list[Any], count: int) -> Any:
    match kind:
        case "list":
            return parts
        case "tuple":
            return tuple(parts)
        case "dict":
            return {f"k{number}": part for number, part in enumerate(parts)}
        case "set" | "frozenset":
            return {"set": set, "frozenset": frozenset}[kind](filter(_has_cheap_hash, parts))
        case "keyed":
            return dict.fromkeys(filter(_has_cheap_hash, parts), parts[-1])
        case "repeat":
            return parts[:1] * count
        case "wide":
            return {f"{number}": parts[0] for number in range(count)}
    return [parts[0], parts[0]]


def _has_cheap_hash(value: Any) -> bool:
    return not isinstance(value, tuple | frozenset | list | dict | set)


def length_of(value: Any, known: dict[int, int] | None = None) -> int:
    """The length of the value as JSON, counted without writing it. It has this form."""
    known = {} if known is None else known
    if not isinstance(value, list | tuple | dict):
        return len(json.dumps(value, ensure_ascii=False))
    if id(value) not in known:
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        each = [length_of(item, known) for item in items]
        keys = sum(len(json.dumps(key, ensure_ascii=False)) + 2 for key in value) if isinstance(value, dict) else 0
        known[id(value)] = 2 + sum(each) + keys + 2 * max(0, len(each) - 1)
    return known[id(value)]


def is_json(value: Any, depth: int = 0, known: set[tuple[int, int]] | None = None) -> bool:
    """Whether the value has a form in JSON, as tools take it."""
    known = set() if known is None else known
    if depth > MOST_DEPTH or (isinstance(value, int) and value.bit_length() > INTEGER_BITS):
        return False
    if (id(value), depth) in known:
        return True
    known.add((id(value), depth))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(is_json(e, depth + 1, known) for e in value.values())
    if isinstance(value, list | tuple):
        return all(is_json(each, depth + 1, known) for each in value)
    return value is None or isinstance(value, str | bool | int | float)


def write_value(value: Any) -> None:
    """Write a value as JSON, and as a last expression: neither has more than it may, and what fits is whole."""
    fits = is_json(value) and length_of(value) <= MOST
    try:
        text = json_of(value, MOST)
        assert fits
        assert text == json.dumps(value, ensure_ascii=False)
    except TooLargeError:
        assert not fits
    except TypeError:
        assert not is_json(value)
    try:
        assert len(shown_value(value, MOST)) <= MOST
    except ScriptError:
        assert not fits


# Scripts

_LITERALS = st.sampled_from(
    [
        "10**1200", "10**4_000_000", "'a' * 900_000", "'a' * 90_000_000", "'\\0' * 400_000", "b'a' * 5_000_000", "1.5", "float('nan')",
        "list(range(200_000))", "'é'", "{1}", "None", "ValueError('a' * 20_000_000)", "json.loads('[' * 90 + ']' * 90)", "(1,)",
    ]
)  # fmt: skip
_FORMS = st.sampled_from(
    [
        "[{0}, {0}]", "({0}, {1})", "{{'k': {0}, 'l': {1}}}", "[{0}] * 100_000", "{{{0}}}", "{{{0}: {1}}}", "frozenset([{0}])",
        "({0},) * 3", "[{0}, [{1}]]", "str({0})", "{{str(n): {0} for n in range(20_000)}}", "[{0} for n in range(1_000)]",
    ]
)  # fmt: skip
_ENDS = st.sampled_from(
    [
        "{0}", "print({0})", "await f(x={0})", "await f({0}, {1})", "raise ValueError(str({0}))", "raise ToolError('a' * 30_000_000)",
        "for n in range(10**6):\n    try:\n        await f(x={0})\n    except TypeError:\n        pass", "await f(**{{str({0}): 1}})",
        "while True:\n    print({0})", "import asyncio\nawait asyncio.gather(*(f(x={0}) for n in range(50)))", "{{{0}: {1}}}",
        "assert {0} == {1}", "raise {0}", "def g():\n    return g()\ng()",
    ]
)  # fmt: skip


@st.composite
def scripts(draw: st.DrawFn) -> str:
    """A script that makes a value of values, many times over, and gives it to its host in some way."""
    lines = ["import json", f"v0 = {draw(_LITERALS)}", f"v1 = {draw(_LITERALS)}"]
    for number in range(2, 2 + draw(st.integers(0, 4))):
        one, other = (f"v{draw(st.integers(0, number - 1))}" for _ in range(2))
        lines.append(f"v{number} = {draw(_FORMS).format(one, other)}")
        if draw(st.booleans()):
            form = draw(st.sampled_from(["[{0}, {0}]", "({0}, {0})", "{{'a': {0}, 'b': {0}}}"])).format(f"v{number}")
            lines.append(f"for n in range({draw(st.sampled_from([2, 12, 40, 3_000]))}):\n    v{number} = {form}")
    newest = f"v{number}" if len(lines) > 3 else "v0"
    return "\n".join([*lines, draw(_ENDS).format(newest, "v1")])


def run_hostile_script(code: str) -> None:
    """Run a script: it ends with a result or a failure, and its worker gets what the limits allow."""
    session = ScriptSession.open(
        None, {"f": ScriptFunction("f", ["x"])}, max_calls=100, timeout=1, seed="s", stubs=None
    )
    try:
        session.start(code)
        failure = None
    except ScriptError as error:
        failure = error
    finally:
        session.close()
    if failure is not None:
        assert failure.kind in ("tool_exception", "tool_timeout", "invalid_code")
        assert len(f"{failure}{failure.detail}") <= 10_000
        return
    assert len(session.value) <= OUTPUT_CHARS
    assert len("".join(session.printed)) <= OUTPUT_CHARS
    for each in session.calls:
        assert len(each.arguments) <= ARGUMENTS_CHARS
        assert isinstance(json.loads(each.arguments), dict)
