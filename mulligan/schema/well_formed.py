"""Text that UTF-8 can write: JSON can spell half a surrogate pair, history and HTTP bodies cannot contain it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator


def well_formed(text: object) -> object:
    """Replace lone surrogates by U+FFFD; anything but text is returned unchanged. A subclass of str becomes a str."""
    if isinstance(text, str):
        text = str.__str__(text)  # not the methods of a subclass, which may do anything
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


WellFormedText = Annotated[str, BeforeValidator(well_formed)]
