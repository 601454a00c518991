"""The arguments of a call as its model wrote them, parsed once: all that is done with a call uses this one value."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass

from pydantic import JsonValue

from mulligan.activities.answers.repair_json import NotJson, parse_exactly
from mulligan.schema.argument_digest import normal_text

LONG = 20_000
"""Characters of arguments beyond which they are read in a thread: brackets of megabytes take seconds."""


@dataclass(frozen=True)
class ParsedArguments:
    """The text, and its JSON value; or the `fault`, where the text is not JSON.

    `is_legal`: the text is a JSON object that every provider accepts as the arguments of a call.
    """

    text: str
    value: JsonValue = None
    fault: NotJson | None = None
    is_legal: bool = False

    @classmethod
    def of(cls, text: str) -> ParsedArguments:
        """Parse the text. See `parse_json`."""
        try:
            value, is_exact = parse_exactly(text)
        except NotJson as fault:
            return cls(text, fault=fault)
        return cls(text, value, is_legal=is_exact and isinstance(value, dict))

    @property
    def is_whole_object(self) -> bool:
        """Whether the model wrote an object to its last bracket: also if the object has NaN, 1e999 or too many levels."""
        if self.fault is None:
            return isinstance(self.value, dict)
        try:
            return isinstance(json.loads(self.text, parse_int=str), dict)
        except (ValueError, RecursionError):
            return False

    @property
    def is_long(self) -> bool:
        """Whether what reads the whole text must not do so on an event loop."""
        return len(self.text) > LONG

    @property
    def key(self) -> str:
        """A digest. Arguments that differ only in white space, in the order of fields or in how numbers are written have the
        same one.
        """
        is_json = self.fault is None
        text = normal_text(self.value) if is_json else " ".join(self.text.split())
        return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


async def parse_arguments(text: str) -> ParsedArguments:
    """Parse the arguments of a call: long ones in a thread."""
    return await asyncio.to_thread(ParsedArguments.of, text) if len(text) > LONG else ParsedArguments.of(text)
