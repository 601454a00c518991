"""Scripts in their interpreter, without a run: what hostile ones give to their host, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pydantic_monty as monty
import pytest

from mulligan.activities.code_mode.script_error import ScriptError
from mulligan.activities.code_mode.script_function import ScriptFunction
from mulligan.activities.code_mode.script_session import ScriptSession

MANY = "x = ['a']\nfor n in range(10):\n    x = [x] * 10\n"
"""A list of 10 lists of 10 lists …: 10^10 values for whoever reads it, and no memory."""
DEEP = "x = []\nfor n in range({levels}):\n    x = [x]\n"

VALUES = {
    "1": "1",
    "'a\\0b'": "a\0b",
    "'\\ud800'": "\ufffd",
    "None": "",
    "[1, None, 'a']": '[1, null, "a"]',
    "{1, 2}": "{1, 2}",
    "float('nan')": "nan",
    "1j": "1j",
    "import datetime\ndatetime.date(2026, 1, 2)": "datetime.date(2026, 1, 2)",
    "x = []\nx.append(x)\nx": '["[...]"]',
    DEEP.format(levels=5_000) + "x": "[" * 51 + "..." + "]" * 51,
    "{n: -n for n in range(12, 0, -1)}": repr({n: -n for n in range(12, 0, -1)}),
    "[{1}, 'a' * 2_000, *range(100)]": repr([{1}, "a" * 2_000, *range(100)]),
    "({1}, {}, 'a', {'b': (1,)}, 3, 4, 5, 6)": "({1}, {}, 'a', {'b': (1,)}, 3, 4, 5, 6)",
    "eval('1')": "1",
}
"""What a model reads of the last expression."""
HARM = {
    MANY + "x": "1,000,000 characters",
    MANY + "{1: x}": "1,000,000 characters",
    MANY + "print(x)": "",
    MANY + "await f(x)": "more than 500,000 characters of arguments",
    "await f('a' * 600_000)": "more than 500,000 characters of arguments",
    "await f({'a' * 600_000: 1})": "more than 500,000 characters of arguments",
    DEEP.format(levels=5_000) + "await f(x)": "nested too deeply",
    "10**5_000": "too large to be written",
    "[1, 10**5_000]": "too large to be written",
    "await f(10**5_000)": "an integer with more than 4,000 bits",
    "await f(float('inf'))": "inf, for which JSON has no number",
    "await f({1: 2})": "give texts, numbers",
    "await f({1, 2})": "was given a set",
    "2**(10**9)": "memory",
    "'a' * 10**18": "memory",
    "f'{1:>1000000000}'": "",
    "raise KeyboardInterrupt()": "KeyboardInterrupt",
    "breakpoint()": "not defined",
    "open('/etc/passwd')": "Permission",
    "().__class__.__bases__[0].__subclasses__()": "AttributeError",
    "await f(1, 2)": "takes 1 positional",
    "await f(1, x=2)": "several values",
}
"""Scripts that end with a text, and what is in it."""


@pytest.fixture(scope="module")
def pool() -> Iterator[monty.Monty]:
    with monty.Monty(min_processes=0, max_processes=4) as pool:
        yield pool


def ran(pool: monty.Monty, code: str) -> ScriptSession:
    functions = {"f": ScriptFunction("f", ["x"])}
    session = ScriptSession.open(pool, functions, max_calls=3, timeout=3, seed="s", stubs=None)
    try:
        session.start(code)
    finally:
        session.close()
    return session


@pytest.mark.parametrize("code", VALUES, ids=ascii)
def test_any_value_has_a_text(pool: monty.Monty, code: str) -> None:
    session = ran(pool, code)
    assert (session.is_over, session.value) == (True, VALUES[code])


@pytest.mark.parametrize("code", HARM, ids=ascii)
def test_a_script_that_does_harm_ends_with_a_text(pool: monty.Monty, code: str) -> None:
    with pytest.raises(ScriptError) as ended:
        ran(pool, code)
    assert HARM[code] in f"{ended.value}\n{ended.value.detail}"


@pytest.mark.parametrize("code", ["'\ud800'", "x = " + "+".join(["1"] * 20_000), "del f", "\u202e1"], ids=ascii)
def test_code_that_the_interpreter_does_not_read_is_refused(pool: monty.Monty, code: str) -> None:
    with pytest.raises(ScriptError):
        ran(pool, code)


def test_a_call_has_its_arguments_as_json(pool: monty.Monty) -> None:
    session = ran(pool, "x = [1]\nawait f([x, x, (True, None), {'ä': 1.5}])")
    assert [each.arguments for each in session.calls] == ['{"x": [[1], [1], [true, null], {"ä": 1.5}]}']
