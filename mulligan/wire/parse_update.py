"""The argument of an update as its type, or one sentence that says what is wrong with it."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mulligan.errors import UpdateRefusedError
from mulligan.wire.updates import MESSAGE_BYTES, SHORT_CHARS

_Request = TypeVar("_Request", bound=BaseModel)
MOST_FIELDS = 100
"""Fields of an argument, known or not. pydantic reports each unknown one, and a workflow task has two seconds."""


def parse_update(kind: type[_Request], argument: Any) -> _Request:
    """The argument of an update as its type.

    Raises:
        UpdateRefusedError: it is invalid; the message names the first field at fault.
    """
    if isinstance(argument, dict) and len(argument) > MOST_FIELDS:
        raise UpdateRefusedError(
            f"The update's argument has {len(argument):,} fields; at most {MOST_FIELDS} are accepted."
        )
    try:
        return kind.model_validate({} if argument is None else argument)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(map(str, fault["loc"])) or ("text" if fault["type"] == "text_missing" else "")
        known = ", ".join(f'"{name}"' for name in kind.model_fields)
        problem = {
            "missing": "is missing",
            "text_missing": "is missing",
            "content": fault["msg"],
            "extra_forbidden": f"is not a known field; known are {known}",
            "too_long": f"has {len(str(fault['input'])):,} characters; at most {SHORT_CHARS:,} are accepted",
            "string_too_long": f"has {len(str(fault['input'])):,} characters; at most {SHORT_CHARS:,} are accepted",
        }.get(fault["type"], f"cannot be taken: {fault['msg'][0].lower()}{fault['msg'][1:]}")
        subject = f'"{field}"' if field else "The update's argument"
        raise UpdateRefusedError(f"{subject} {problem}.") from None


def check_size(field: str, text: str, most: int = MESSAGE_BYTES) -> None:
    """Refuse a field that has more than `most` bytes.

    Raises:
        UpdateRefusedError: it has more.
    """
    if (size := len(text.encode())) > most:
        raise UpdateRefusedError(f'"{field}" has {size:,} bytes; at most {most:,} are accepted.')
