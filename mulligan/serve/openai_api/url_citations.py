"""The sources that an answer names, as OpenAI's annotations of a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mulligan.values import Citation


def url_citations(citations: Iterable[Citation], text: str) -> list[dict[str, Any]]:
    """The annotations of a text of the Responses API. A source without an address has none.

    Where the provider does not say which part of the text a source supports, the annotation stands at the text's end.
    """
    end = len(text)
    return [
        {
            "type": "url_citation",
            "url": each.url,
            "title": each.title,
            "start_index": end if each.start is None else each.start,
            "end_index": end if each.end is None else each.end,
        }
        for each in citations
        if each.url
    ]


def chat_citations(citations: Iterable[Citation], text: str, before: int = 0) -> list[dict[str, Any]]:
    """The same annotations in the form of a chat completion. `before`: how many characters it has before the text."""
    annotations = url_citations(citations, text)
    for each in annotations:
        each["start_index"], each["end_index"] = each["start_index"] + before, each["end_index"] + before
    return [{"type": each.pop("type"), "url_citation": each} for each in annotations]
