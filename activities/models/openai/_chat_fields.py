"""The fields of a Chat Completions message that Mulligan does not interpret: annotations, audio, other servers' reasoning.

They are kept, and sent back with the message. A server may send fields that it refuses in a request: it is asked again
without those that its refusal names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mulligan.activities.models._hosted_work import LEFT_OUT, HostedWork, citation
from mulligan.activities.models._json_fields import as_text, to_json
from mulligan.activities.models._made_files import MadeFiles
from mulligan.values import Citation

NOT_HERE = "This call cannot be carried out here."
IMAGES = "images"
"""The field of OpenRouter and others for the images of an answer."""
CALLS, CONTENT = "tool_calls", "content"
"""The keys in `provider_data` for what is kept of the calls, in their order, and for content that is not text alone."""
_OF_MESSAGE = frozenset({"role", CONTENT, "refusal", CALLS, "function_call"})
_OF_CALL = frozenset({"id", "type", "function", "index"})
_OF_FUNCTION = frozenset({"name", "arguments"})
"""The fields that Mulligan interprets."""
_TEXT_PARTS = ("text", "refusal")
THINKING_BLOCKS = "thinking_blocks"
"""LiteLLM's field for Anthropic's thoughts, which only go back with their signatures, each with its own."""


def kept_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a message of an answer: all that is not its text, its refusal and its functions' calls."""
    fields = {name: value for name, value in message.items() if name not in _OF_MESSAGE and not _is_empty(value)}
    if isinstance(blocks := fields.pop(THINKING_BLOCKS, None), list):
        # Of a thought that was cut off there is no signature, and none is accepted without.
        signed = [each for each in blocks if not _is_thought(each) or each.get("signature")]
        fields |= {THINKING_BLOCKS: signed} if signed else {}
    content = message.get(CONTENT)
    if isinstance(content, list) and not all(map(is_text_part, content)):
        fields[CONTENT] = content
    calls = message.get(CALLS)
    places = [_place(call) for call in calls] if isinstance(calls, list) else []
    return {**fields, CALLS: places} if any(places) else fields


def without_bytes(message: Mapping[str, Any], files: MadeFiles) -> dict[str, Any]:
    """A message with marks in the places of images and of audio, which become `files`.

    Of audio nothing but its id goes back to the API.
    """
    message, audio = dict(message), message.get("audio")
    for name in (IMAGES, CONTENT):
        if isinstance(parts := message.get(name), list):
            given = [_part_without_bytes(part, files) for part in parts]
            message[name] = [part for part in given if name == CONTENT or part.get("type") != "text"]
    if isinstance(audio, dict) and audio.get("data"):
        files.take(audio["data"])
        message["audio"] = {name: value for name, value in audio.items() if name != "data"}
    return message


def _part_without_bytes(part: Any, files: MadeFiles) -> Any:
    match part:
        case {"image_url": {"url": str(url)}}:
            mark = files.take_url(url, "image/png")
            named = {**part, "image_url": {**part["image_url"], "url": mark}}
        case {"type": "image_url", "image_url": str(url)}:
            mark = files.take_url(url, "image/png")
            named = {**part, "image_url": mark}
        case _:
            return part if isinstance(part, dict) else {"type": "text", "text": as_text(part)}
    return named if mark else {"type": "text", "text": f"[{files.newest}]"}


def _is_empty(value: object) -> bool:
    """Whether a field says nothing, as LiteLLM's `provider_specific_fields: {"refusal": null}`."""
    return all(map(_is_empty, value.values())) if isinstance(value, dict) else value in (None, [], "")


def is_text_part(part: object) -> bool:
    """Whether a part of a message's content is a text and nothing else."""
    return not isinstance(part, dict) or (part.get("type", "text") in _TEXT_PARTS and len(part) <= 2)


def _place(call: Any) -> dict[str, Any]:
    """What is kept of a call: the whole of one that calls no function, otherwise the fields beside the function's."""
    if not isinstance(call, dict):
        return {}
    if is_custom(call):
        return call
    function = call.get("function")
    more = {n: v for n, v in function.items() if n not in _OF_FUNCTION and v is not None} if function else {}
    place = {name: value for name, value in call.items() if name not in _OF_CALL and value is not None}
    return {**place, "function": more} if more else place


def is_custom(call: object) -> bool:
    """Whether a call calls no function, but a tool of another kind, which no agent has."""
    return isinstance(call, dict) and call.get("type", "function") != "function" and not call.get("function")


def with_kept_fields(item: dict[str, Any], data: object) -> list[dict[str, Any]]:
    """The messages for an answer with what was kept of it: a call that nobody here carries out has a result that says so.

    Args:
        item: The answer as a message, with its text and its functions' calls.
        data: What `kept_fields` has returned.
    """
    if not isinstance(data, dict):
        return [item]
    item = {**item, **{name: value for name, value in data.items() if name not in _OF_MESSAGE and name != LEFT_OUT}}
    if isinstance(data.get(LEFT_OUT), str):
        item[CONTENT] = "\n\n".join(filter(None, (item[CONTENT], data[LEFT_OUT])))
    if isinstance(content := data.get(CONTENT), list):
        item[CONTENT] = content
    if isinstance(audio := item.get("audio"), dict):
        # The API takes its id alone, in place of its transcript.
        item |= {"audio": {"id": audio.get("id")}, CONTENT: None}
    places = data.get(CALLS)
    if not isinstance(places, list):
        return [item]
    own = iter(item.pop(CALLS, []))
    calls: list[dict[str, Any]] = []
    for place in places:
        if not isinstance(place, dict):
            continue
        if is_custom(place):
            calls.append(place)
        elif (call := next(own, None)) is not None:
            more = place.get("function")
            function = {**more, **call["function"]} if isinstance(more, dict) else call["function"]
            calls.append({**place, **call, "function": function})
    item[CALLS] = [*calls, *own]
    results = [
        {"role": "tool", "tool_call_id": as_text(call.get("id")), "content": NOT_HERE}
        for call in calls
        if is_custom(call)
    ]
    return [item, *results]


def extra_fields(items: Iterable[str]) -> set[str]:
    """The fields of the encoded answers that only `with_kept_fields` has written."""
    answers = (json.loads(item) for item in items if item.startswith('{"role":"assistant"'))
    return {name for answer in answers for name in answer if name not in (*_OF_MESSAGE, "name")}


def without_fields(items: Sequence[str], names: Iterable[str]) -> list[str]:
    """The encoded messages without these fields of answers."""
    left_out = set(names)
    return [_without(item, left_out) if item.startswith('{"role":"assistant"') else item for item in items]


def _without(item: str, names: set[str]) -> str:
    answer = json.loads(item)
    if not names & answer.keys():
        return item
    if IMAGES in names and isinstance(images := answer.get(IMAGES), list):
        said = f"[Images made in this answer ({len(images)}): this model's endpoint does not take them here]"
        answer[CONTENT] = "\n\n".join(filter(None, (as_text(answer.get(CONTENT)), said)))
    if "audio" in names and answer.get(CONTENT) is None and not answer.get(CALLS):
        answer[CONTENT] = ""
    return to_json({name: value for name, value in answer.items() if name not in names})


def citations_of(message: Mapping[str, Any], text: str) -> list[Citation]:
    """The citations of a message's text."""
    found = []
    for each in message.get("annotations") or []:
        inner = each.get(each.get("type")) if isinstance(each, dict) else None
        if isinstance(inner, dict):
            places = inner.get("start_index"), inner.get("end_index")
            title = inner.get("title") or inner.get("file_id")
            found.append(citation(inner.get("url"), title, inner.get("content"), *places, length=len(text)))
    return found


def hosted_work(data: Any) -> Iterator[HostedWork]:
    """The calls that nobody here carried out. What a server did itself, this API does not say."""
    for call in data.get(CALLS) or [] if isinstance(data, dict) else []:
        if is_custom(call):
            inner = call.get(call["type"])
            inner = inner if isinstance(inner, dict) else {}
            name, written = as_text(inner.get("name")) or as_text(call["type"]), inner.get("input", inner)
            yield HostedWork(id=as_text(call.get("id")), name=name, arguments=written, status="failed")


def cited_sources(data: Any) -> Iterator[tuple[str, str]]:
    """The title and the address of each source that a message cites."""
    for each in citations_of(data, "") if isinstance(data, dict) else []:
        yield each.title, each.url


def join_deltas(joined: dict[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """Add a delta of a streamed message to what has arrived, as the `openai` package does, and return that.

    Texts and numbers are added up; the entries of a list are joined by their `index`, and appended where they have none.
    """
    for name, value in delta.items():
        before = joined.get(name)
        if name in ("index", "type", "id", "format") or before is None:
            joined[name] = _JOINS.get(name, _join_list)([], value) if isinstance(value, list) else value
        elif isinstance(before, str) and isinstance(value, str):
            joined[name] = before + value
        elif isinstance(before, dict) and isinstance(value, dict):
            joined[name] = join_deltas(dict(before), value)
        elif isinstance(before, list) and isinstance(value, list):
            joined[name] = _JOINS.get(name, _join_list)(before, value)
        elif _is_number(before) and _is_number(value):
            joined[name] = before + value
        elif value is not None:
            joined[name] = value
    return joined


def _join_list(joined: list[Any], delta: list[Any]) -> list[Any]:
    for entry in delta:
        index = entry.get("index") if isinstance(entry, dict) else None
        same = next((n for n, each in enumerate(joined) if isinstance(each, dict) and each.get("index") == index), None)
        if index is None or same is None:
            joined.append(entry)
        else:
            joined[same] = join_deltas(dict(joined[same]), entry)
    return joined


def _join_thoughts(joined: list[Any], delta: list[Any]) -> list[Any]:
    """Thoughts and their pieces, which have no index: a piece goes on with the newest, until that has its signature."""
    for piece in delta:
        newest = joined[-1] if joined else None
        if newest is not None and _is_thought(piece) and _is_thought(newest) and not newest.get("signature"):
            joined[-1] = join_deltas(dict(newest), piece)
        else:
            joined.append(piece)
    return joined


def _join_images(joined: list[Any], delta: list[Any]) -> list[Any]:
    """Images come whole, each with the same index in some streams, and once more at the end of others."""
    return [*joined, *(image for image in delta if not _is_same_image(image, joined))]


def _is_same_image(image: Any, known: list[Any]) -> bool:
    def url(each: Any) -> Any:
        return each.get("image_url") if isinstance(each, dict) else each

    return any(url(each) == url(image) for each in known)


_JOINS = {THINKING_BLOCKS: _join_thoughts, IMAGES: _join_images}
"""How the entries of a list are joined, where that is not by their index."""


def _is_thought(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "thinking"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
