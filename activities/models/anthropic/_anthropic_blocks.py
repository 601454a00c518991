"""The blocks of Anthropic's answers that Mulligan does not interpret: server tools, citations, compaction, unknown types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mulligan.activities.models._hosted_work import ID_CHARS, LEFT_OUT, HostedWork, citation, objects, texts_in
from mulligan.activities.models._json_fields import as_text
from mulligan.activities.models._made_files import MadeFiles
from mulligan.schema.cut_text import beginning
from mulligan.values import Citation

CONTAINER = "mulligan:container"
"""The type of the place that names the container in which the provider ran code: the next request names it again."""
_OF_TEXT = frozenset({"type", "text"})
_OF_CALL = frozenset({"type", "id", "name", "input"})
"""The fields that Mulligan interprets, of a text and of a call."""
_WRITTEN = ("text", "thinking", "redacted_thinking", "tool_use")
"""The types of blocks that the model writes."""
_NOT_SENDABLE = ("tool_use", "tool_result", LEFT_OUT, CONTAINER)
"""Blocks that are sent in another way, or that no answer has: a client may have written what is in `provider_data`."""
_FOUND_FIELDS = ("title", "url", "text", "data", "stdout", "stderr", "content", "tool_name", "error_code", "file_id")


def is_plain_text(block: Mapping[str, Any]) -> bool:
    """Whether a block of text is no more than its text."""
    return not any(value for name, value in block.items() if name not in _OF_TEXT)


def continues_text(number: int, blocks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a block of text continues the text before it: after a search, each cited sentence is a block."""
    if not number or blocks[number - 1].get("type") != "text":
        return False
    return any(block.get("type") not in _WRITTEN for block in blocks[:number])


def more_of_call(block: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a call that Mulligan does not interpret: who has called, and of which set of tools."""
    return {name: value for name, value in block.items() if name not in _OF_CALL and value is not None}


def sent_block(place: Mapping[str, Any]) -> dict[str, Any] | None:
    """The block for a place of an answer's layout that is a block as it came; None if it cannot be sent."""
    if place.get("type") == LEFT_OUT:
        return {"type": "text", "text": as_text(place.get("text")) or "(left out)"}
    if not isinstance(place.get("type"), str) or place["type"] in _NOT_SENDABLE:
        return None
    return dict(place)


def container_of(layout: Any) -> tuple[str, str] | None:
    """The id of the container that an answer names, and until when it can be used (ISO 8601, or "")."""
    for place in reversed(objects(layout)):
        if place.get("type") == CONTAINER and isinstance(place.get("id"), str):
            return place["id"], as_text(place.get("expires_at"))
    return None


def citations_of(block: Mapping[str, Any], start: int, length: int) -> list[Citation]:
    """The citations of a block of text, each of which is for the whole block.

    Args:
        block: The block.
        start: Where its text begins in the answer's text.
        length: That of the answer's text, in characters.
    """
    end = start + len(as_text(block.get("text")))
    found = []
    for each in objects(block.get("citations")):
        url = each.get("url") or each.get("source")
        title = each.get("title") or each.get("document_title")
        found.append(citation(url, title, each.get("cited_text"), start, end, length=length))
    return found


def hosted_work(layout: Any) -> Iterator[HostedWork]:
    """What the provider did, by the blocks of an answer or the places of its layout."""
    blocks = objects(layout)
    results = {as_text(block["tool_use_id"]): block for block in blocks if block.get("tool_use_id")}
    for block in blocks:
        kind = as_text(block.get("type"))
        if not kind.endswith("tool_use") or kind == "tool_use":
            continue
        result = results.get(as_text(block.get("id")))
        yield HostedWork(
            id=as_text(block.get("id")),
            name=as_text(block.get("name")) or kind,
            arguments=block.get("input"),
            status=_status(result),
            found="\n".join(texts_in((result or {}).get("content"), _FOUND_FIELDS)),
        )


def files_of(blocks: Sequence[Mapping[str, Any]]) -> MadeFiles:
    """The files that executed code has written. They are at the provider: an answer has their ids alone."""
    files = MadeFiles()
    for block in blocks:
        content = block.get("content")
        for each in objects(content.get("content")) if isinstance(content, dict) else []:
            if as_text(each.get("type")).endswith("code_execution_output") and each.get("file_id"):
                file_id = beginning(as_text(each["file_id"]), ID_CHARS)
                files.note(
                    f"The provider has the file {file_id}, which its code has written; its Files API returns it."
                )
    return files


def _status(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "in_progress"
    content = result.get("content")
    is_error = isinstance(content, dict) and as_text(content.get("type")).endswith("_error")
    return "failed" if is_error or result.get("is_error") else "completed"


def cited_sources(layout: Any) -> Iterator[tuple[str, str]]:
    """The title and the address of each source that the texts of a layout cite."""
    for block in objects(layout):
        for each in citations_of(block, 0, 0):
            yield each.title, each.url
