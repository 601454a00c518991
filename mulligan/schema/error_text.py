"""The text and the class's name of any exception: in users' code it may have none, or an unwritable text."""

from __future__ import annotations

from contextlib import suppress

from mulligan.schema.exception_group import causes
from mulligan.schema.well_formed import well_formed

TYPE_CHARS = 200
"""Characters of a class's name."""
_TEXT = "_mulligan_text"


def error_text(error: BaseException) -> str:
    """The exception's text, which UTF-8 can write; empty if its `__str__` raises. Of a group: those of its exceptions.

    It is computed once and kept on the exception. `ToolRuntime` does that where the function ran that raised it, within the
    function's time limit, because `__str__` is users' code and may never return.
    """
    # Users' classes can make each of these raise anything, a SystemExit too.
    with suppress(BaseException):
        return str(object.__getattribute__(error, _TEXT))
    text = ""
    with suppress(BaseException):
        text = _of_group(error) if isinstance(error, BaseExceptionGroup) else str(well_formed(str(error)))
    with suppress(BaseException):
        object.__setattr__(error, _TEXT, text)  # the class may be a frozen dataclass
    return text


def _of_group(group: BaseExceptionGroup[BaseException]) -> str:
    texts = (": ".join(filter(None, (type_name(each), error_text(each)))) for each in causes(group))
    return "; ".join(dict.fromkeys(texts))


def type_name(value: object) -> str:
    """The name of a value's class, which UTF-8 can write, cut to `TYPE_CHARS` characters."""
    return str(well_formed(str(type(value).__name__)))[:TYPE_CHARS]
