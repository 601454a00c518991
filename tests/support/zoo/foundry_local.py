"""Microsoft's Foundry Local: the index of a choice counts the chunks, and each chunk has an empty `error`."""

from __future__ import annotations

from tests.support.zoo import streams
from tests.support.zoo.member import Json, Member


def counted(event: Json, number: int) -> Json:
    """A chunk with its number as the choice's index."""
    return {**event, "error": None, "choices": [{**choice, "index": 197 + number} for choice in event["choices"]]}


MEMBER = Member(
    name="foundry_local",
    sources=["https://github.com/microsoft/foundry-local/issues/144 (indexes)"],
    answers=streams.without_usage,
    streams=streams.changed(streams.openai, counted),
)
