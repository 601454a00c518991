"""`shown_value`: the value of a script's last expression, as the model reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mulligan.activities.code_mode.script_error import ScriptError
from mulligan.activities.code_mode.script_json import BoundedText, TooLargeError, json_of

REPR_LEVELS = 50
"""How deep a last expression that is no JSON is shown."""
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    dict: ("{", "}"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}


def shown_value(value: Any, most: int) -> str:
    """JSON if it has that form, otherwise Python's `repr`; a text as it is. At most `most` characters.

    Raises:
        ScriptError: it is longer, or has a number that Python does not write.
    """
    try:
        if isinstance(value, str):
            if len(value) > most:
                raise TooLargeError(most)
            return value
        try:
            return json_of(value, most)
        except TooLargeError:
            raise
        except TypeError:
            text = BoundedText(most)
            _write(value, text, REPR_LEVELS)
            return str(text)
    except TooLargeError:
        raise ScriptError(
            f"The value of the script's last expression has more than {most:,} characters. Print less."
        ) from None
    except ValueError:  # an integer with more digits than Python writes
        raise ScriptError("The script's last expression has a number that is too large to be written.") from None


def _write(value: Any, text: BoundedText, levels: int) -> None:
    """Write the `repr` of a value, measured as it is written."""
    kind = type(value)
    if kind in (str, bytes):
        text.add_quoted(value, repr)
    elif kind not in _BRACKETS:
        text.add(repr(value))
    elif not value and kind in (set, frozenset):
        text.add(f"{kind.__name__}()")
    else:
        opening, closing = _BRACKETS[kind]
        text.add(opening)
        if value and levels <= 0:
            text.add("...")
        elif kind is dict:
            _write_items(value.items(), text, levels)
        else:
            _write_each(value if kind in (list, tuple) else _ordered(value), text, levels)
        text.add(f",{closing}" if kind is tuple and len(value) == 1 and levels > 0 else closing)


def _write_each(values: Iterable[Any], text: BoundedText, levels: int) -> None:
    for number, each in enumerate(values):
        if number:
            text.add(", ")
        _write(each, text, levels - 1)


def _write_items(items: Iterable[tuple[Any, Any]], text: BoundedText, levels: int) -> None:
    for number, (key, each) in enumerate(items):
        if number:
            text.add(", ")
        _write(key, text, levels - 1)
        text.add(": ")
        _write(each, text, levels - 1)


def _ordered(values: Iterable[Any]) -> Sequence[Any]:
    """The values of a set: sorted where they have an order, so that a script that is run again says the same."""
    try:
        return sorted(values)
    except Exception:  # noqa: BLE001 - comparisons of values of different kinds
        return list(values)
