"""The parts of Gemini's answers that Mulligan does not interpret: executed code, files, server tools, unknown ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.activities.models._hosted_work import LEFT_OUT, HostedWork, citation, objects, texts_in
from mulligan.activities.models._json_fields import as_text
from mulligan.activities.models._made_files import MadeFiles
from mulligan.values import Citation

PART, CANDIDATE = "part", "candidate"
"""The types of places: of a part as it came, and of what the API says of the whole answer, which cannot be sent back."""
_OF_PART = frozenset({"text", "thought", "thoughtSignature", "functionCall"})
_OF_CALL = frozenset({"id", "name", "args"})
"""The fields that Mulligan interprets, of a part and of a call in it."""
_NOT_SENDABLE = frozenset({"functionCall", "functionResponse"})
"""Data that is sent in another way, or that no answer has: a client may have written what is in `provider_data`."""
_OF_CANDIDATE = ("groundingMetadata", "citationMetadata", "urlContextMetadata")


def more_of_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a part that Mulligan does not interpret, those of its call among them."""
    more = {name: value for name, value in part.items() if name not in _OF_PART}
    call = part.get("functionCall")
    of_call = {name: value for name, value in call.items() if name not in _OF_CALL} if isinstance(call, dict) else {}
    return {**more, "functionCall": of_call} if of_call else more


def place_without_bytes(part: dict[str, Any], files: MadeFiles) -> dict[str, Any]:
    """The place of a part that Mulligan does not interpret, with a mark for the file in it, which becomes one of `files`."""
    data = part.get("inlineData")
    if not isinstance(data, dict) or not data.get("data"):
        return {"type": PART, "part": part}
    mark = files.take(data["data"], data.get("mimeType"), as_text(data.get("displayName")) or None)
    return {"type": PART, "part": {**part, "inlineData": {**data, "data": mark}}} if mark else files.left_out()


def sent_part(place: Mapping[str, Any]) -> dict[str, Any] | None:
    """The part for a place of an answer's layout that is a part as it came; None if it cannot be sent."""
    if place.get("type") == LEFT_OUT:
        return {"text": as_text(place.get("text")) or "(left out)"}
    part = place.get("part")
    if place.get("type") != PART or not isinstance(part, dict) or not part or part.keys() & _NOT_SENDABLE:
        return None
    return part


def candidate_place(candidate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The place for what the API says of the whole answer: its searches and sources. None if it says nothing."""
    fields = {name: candidate[name] for name in _OF_CANDIDATE if candidate.get(name)}
    return [{"type": CANDIDATE, **fields}] if fields else []


def citations_of(candidate: Mapping[str, Any], texts: list[str], places: Mapping[int, int]) -> list[Citation]:
    """The sources of an answer, with their places in its text.

    Args:
        candidate: The answer.
        texts: Its texts, of which its text is put together.
        places: Which of the texts each part is, by the part's number.
    """
    grounding = candidate.get("groundingMetadata")
    grounding = grounding if isinstance(grounding, dict) else {}
    chunks = [_source(chunk) for chunk in objects(grounding.get("groundingChunks"))]
    cited: set[int] = set()
    found = []
    length = sum(map(len, texts))
    for support in objects(grounding.get("groundingSupports")):
        span = _span(support.get("segment"), texts, places)
        for index in support.get("groundingChunkIndices") or []:
            if isinstance(index, int) and 0 <= index < len(chunks):
                cited.add(index)
                found.append(citation(*chunks[index], *span, length=length))
    found += [citation(*chunk, length=length) for index, chunk in enumerate(chunks) if index not in cited]
    metadata = candidate.get("citationMetadata")
    for each in (
        objects(metadata.get("citations") or metadata.get("citationSources")) if isinstance(metadata, dict) else []
    ):
        span = _span({"startIndex": each.get("startIndex"), "endIndex": each.get("endIndex")}, ["".join(texts)], {0: 0})
        found.append(citation(each.get("uri"), each.get("title"), None, *span, length=length))
    return found


def _source(chunk: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The address, the title and the text of a source."""
    source: dict[str, Any] = next(
        (chunk[kind] for kind in ("web", "retrievedContext", "maps", "image") if isinstance(chunk.get(kind), dict)), {}
    )
    return source.get("uri") or source.get("sourceUri"), source.get("title"), source.get("text")


def _span(segment: object, texts: list[str], places: Mapping[int, int]) -> tuple[int | None, int | None]:
    """Where a segment lies in the answer's text. The API counts bytes of UTF-8 within one part."""
    if not isinstance(segment, dict):
        return None, None
    number = places.get(segment.get("partIndex") or 0)
    start, end = segment.get("startIndex") or 0, segment.get("endIndex")
    if number is None or not isinstance(start, int) or not isinstance(end, int):
        return None, None
    data = texts[number].encode(errors="replace")
    if not 0 <= start <= end <= len(data):
        return None, None
    before = sum(map(len, texts[:number]))
    first, last = (before + len(data[:at].decode(errors="ignore")) for at in (start, end))
    return first, last


def hosted_work(layout: Any) -> Iterator[HostedWork]:
    """What the provider did, by the places of an answer's layout.

    What has parts of its own is named by the candidate once more (`webSearchQueries`, as many as are billed): it is one.
    """
    parts = [
        place["part"] for place in objects(layout) if place.get("type") == PART and isinstance(place.get("part"), dict)
    ]
    searches = [each for place in objects(layout) if place.get("type") == CANDIDATE for each in _searches(place)]
    named = {each.name for each in searches}
    yield from (work for work in _work_in_parts(parts) if work.name not in named)
    yield from searches


def _work_in_parts(parts: list[dict[str, Any]]) -> Iterator[HostedWork]:
    responses = {
        as_text(each.get("id")): each for part in parts for each in [part.get("toolResponse")] if isinstance(each, dict)
    }
    results = [part["codeExecutionResult"] for part in parts if isinstance(part.get("codeExecutionResult"), dict)]
    for part in parts:
        if isinstance(call := part.get("toolCall"), dict):
            response = responses.get(as_text(call.get("id")))
            status = "in_progress" if response is None else "completed"
            found = "\n".join(texts_in((response or {}).get("response")))
            name = as_text(call.get("toolType")).lower()
            name = "google_search" if name.startswith("google_search") else name
            yield HostedWork(as_text(call.get("id")), name, call.get("args"), status, found)
        if isinstance(code := part.get("executableCode"), dict):
            result = results.pop(0) if results else {}
            outcome = as_text(result.get("outcome")).removeprefix("OUTCOME_").lower() or "in_progress"
            status = "completed" if outcome == "ok" else outcome
            yield HostedWork(
                as_text(code.get("id")), "code_execution", code.get("code"), status, as_text(result.get("output"))
            )


def _searches(place: Mapping[str, Any]) -> Iterator[HostedWork]:
    grounding = place.get("groundingMetadata")
    grounding = grounding if isinstance(grounding, dict) else {}
    found = "\n".join(" ".join(filter(None, each)) for each in cited_sources([place]))
    for query in grounding.get("webSearchQueries") or []:
        yield HostedWork("", "google_search", {"query": query}, "completed", found)
    context = place.get("urlContextMetadata")
    for each in objects(context.get("urlMetadata")) if isinstance(context, dict) else []:
        status = "completed" if as_text(each.get("urlRetrievalStatus")).endswith("SUCCESS") else "failed"
        yield HostedWork("", "url_context", {"url": each.get("retrievedUrl")}, status)


def cited_sources(layout: Any) -> Iterator[tuple[str, str]]:
    """The title and the address of each source that an answer names."""
    for place in objects(layout):
        if place.get("type") == CANDIDATE:
            for each in citations_of(place, [], {}):
                yield each.title, each.url
