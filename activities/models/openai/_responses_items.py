"""The items of the Responses API that Mulligan does not interpret: hosted tools, annotated messages, and unknown types.

They are kept as they came, in their places, and sent back so. Some of them ask the client to carry something out, which no
agent has; the API refuses a request in which such a call has no output, so it gets an output that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mulligan.activities.models._hosted_work import LEFT_OUT, HostedWork, citation, objects, texts_in
from mulligan.activities.models._json_fields import as_text
from mulligan.activities.models._made_files import MadeFiles
from mulligan.values import Citation

NOT_HERE = "This call cannot be carried out here."
_OF_MESSAGE = frozenset({"type", "id", "role", "status", "content", "phase"})
_OF_TEXT = frozenset({"type", "text", "annotations", "logprobs"})
_OF_REFUSAL = frozenset({"type", "refusal"})
_OF_CALL = frozenset({"type", "id", "call_id", "name", "arguments", "status"})
"""The fields that Mulligan interprets, of a message, its parts, and a function call."""
_NOT_SENDABLE = ("item_reference", "function_call_output", "reasoning", LEFT_OUT)
"""Items that no answer has, or that are sent in another way: a client may have written what is in `provider_data`."""
_NOT_CALLS = frozenset({"message", "reasoning", "compaction", "additional_tools", "mcp_list_tools", "function_call"})
_OWN_FIELDS = frozenset({"id", "type", "status", "call_id", "created_by", "fingerprint", "namespace", "caller"})
_RESULT_FIELDS = frozenset({"results", "result", "outputs", "output", "sources", "error", "encrypted_content"})
_FOUND_FIELDS = ("filename", "title", "url", "text", "content", "logs", "output", "stdout", "stderr", "message")
_INCLUDES = {
    "web_search": "web_search_call.action.sources",
    "file_search": "file_search_call.results",
    "code_interpreter": "code_interpreter_call.outputs",
}
"""What a request has to include, so that an answer has what a hosted tool found."""


def includes_of(tools: Iterable[Mapping[str, Any]]) -> list[str]:
    """What a request with these hosted tools includes."""
    kinds = [as_text(tool.get("type")) for tool in tools]
    return [name for kind, name in _INCLUDES.items() if any(each.startswith(kind) for each in kinds)]


def is_plain_message(item: Mapping[str, Any]) -> bool:
    """Whether a message is no more than its text and its phase."""
    content = item.get("content")
    if _has_more(item, _OF_MESSAGE):
        return False
    return not isinstance(content, list) or all(map(_is_plain_part, content))


def _is_plain_part(part: Any) -> bool:
    if not isinstance(part, dict) or part.get("type") not in ("output_text", "refusal", "text", None):
        return False
    fields = _OF_REFUSAL if part.get("type") == "refusal" else _OF_TEXT
    return not _has_more(part, fields) and not part.get("annotations") and not part.get("logprobs")


def _has_more(value: Mapping[str, Any], known: frozenset[str]) -> bool:
    return any(name not in known and field is not None for name, field in value.items())


def more_of_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a function call that Mulligan does not interpret."""
    return {name: value for name, value in item.items() if name not in _OF_CALL and value is not None}


def without_bytes(item: dict[str, Any], files: MadeFiles) -> dict[str, Any]:
    """An item with marks in the places of images that a hosted tool has made, which become `files`."""
    match item:
        case {"type": "image_generation_call", "result": str(data)} if data:
            mark = files.take(data, f"image/{as_text(item.get('output_format')) or 'png'}")
            return {**item, "result": mark} if mark else files.left_out()
        case {"type": "code_interpreter_call", "outputs": list(outputs)}:
            return {**item, "outputs": [_without_bytes(output, files) for output in outputs]}
    return item


def _without_bytes(output: Any, files: MadeFiles) -> Any:
    """An output of executed code."""
    match output:
        case {"type": "image", "url": str(url)}:
            mark = files.take_url(url, "image/png")
            return {**output, "url": mark} if mark else {"type": "logs", "logs": files.newest}
    return output


def sent_items(place: Mapping[str, Any], layout: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The input items for a place of an answer's layout that is an item as it came.

    Args:
        place: The place.
        layout: All of the answer's places.
    """
    kind = place.get("type")
    if kind == LEFT_OUT:
        return [{"role": "assistant", "content": as_text(place.get("text"))}]
    is_of_others = kind in ("message", None) and place.get("role", "assistant") != "assistant"
    if kind in _NOT_SENDABLE or is_of_others:
        return []
    screen = {"type": "computer_call_output", "call_id": place.get("call_id")}
    if kind == "computer_call" and not any(_answers(each, screen) for each in layout):
        # Its output would have to be a picture of a screen.
        work = "\n".join(each.describe() for each in hosted_work([place]))
        return [{"role": "assistant", "content": f"{work} {NOT_HERE}"}]
    output = _output_of(place)
    if output is None or any(_answers(each, output) for each in layout):
        return [dict(place)]
    return [dict(place), output]


def _answers(item: Mapping[str, Any], output: Mapping[str, Any]) -> bool:
    """Whether an item is the output of the call that another output is for."""
    link = next(name for name in ("approval_request_id", "id", "call_id") if name in output)
    return bool(item.get("type") == output["type"] and item.get(link) == output[link])


def _output_of(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """The output of a call that the client would have to carry out; None for any other item."""
    call = {"type": f"{item.get('type')}_output", "call_id": item.get("call_id")}
    match item.get("type"):
        case "custom_tool_call":
            return {**call, "output": NOT_HERE}
        case "tool_search_call" if item.get("execution") == "client":
            search = {"execution": "client", "status": "completed", "tools": []}
            return {"type": "tool_search_output", "call_id": item.get("call_id"), **search}
        case "apply_patch_call":
            return {**call, "status": "failed", "output": NOT_HERE}
        case "shell_call":
            outcome = {"type": "exit", "exit_code": 1}
            return {**call, "output": [{"stdout": "", "stderr": NOT_HERE, "outcome": outcome}]}
        case "local_shell_call":
            return {"type": "local_shell_call_output", "id": item.get("call_id"), "output": NOT_HERE}
        case "mcp_approval_request":
            refusal = {"approval_request_id": item.get("id"), "approve": False, "reason": NOT_HERE}
            return {"type": "mcp_approval_response", **refusal}
    return None


def citations_in(content: object, start: int, length: int) -> list[Citation]:
    """The citations of a message's parts.

    Args:
        content: The parts.
        start: Where the message's text begins in the answer's text.
        length: That of the answer's text, in characters.
    """
    found = []
    for part in content if isinstance(content, list) else []:
        if not isinstance(part, dict):
            continue
        text = as_text(part.get("refusal" if part.get("type") == "refusal" else "text"))
        for each in part.get("annotations") or []:
            if isinstance(each, dict):
                found.append(_citation(each, start, start + len(text), length))
        start += len(text)
    return found


def _citation(annotation: Mapping[str, Any], start: int, end: int, length: int) -> Citation:
    """A citation. Its place counts from the beginning of its part, which ends at `end` of the whole text."""
    at = [annotation.get(name) for name in ("start_index", "end_index")]
    places = [start + each if isinstance(each, int) and 0 <= each <= end - start else None for each in at]
    title = annotation.get("title") or annotation.get("filename") or annotation.get("file_id")
    return citation(annotation.get("url"), title, None, *places, length=length)


def hosted_work(layout: Any) -> Iterator[HostedWork]:
    """What the provider did, by the items of an answer or the places of its layout."""
    outputs = {
        (as_text(item.get("type")), as_text(item.get("call_id") or item.get("id"))): item for item in objects(layout)
    }
    for item in objects(layout):
        kind = as_text(item.get("type"))
        if kind in _NOT_CALLS or not kind or kind.endswith(("_output", "_response")) or kind == LEFT_OUT:
            continue
        call_id, named = as_text(item.get("call_id")), f"{kind.removesuffix('_call')}_output"
        output = outputs.get((f"{kind}_output", call_id)) or outputs.get((named, call_id), {})
        yield HostedWork(
            id=as_text(item.get("id") or item.get("call_id")),
            name=as_text(item.get("name")) or kind.removesuffix("_call"),
            arguments=_arguments(item),
            status="failed" if item.get("error") else as_text(item.get("status")) or "completed",
            found="\n".join(_found([item.get(name) for name in ("action", *sorted(_RESULT_FIELDS))], output)),
        )


def cited_sources(layout: Any) -> Iterator[tuple[str, str]]:
    """The title and the address of each source that the messages of a layout cite."""
    for item in objects(layout):
        if item.get("type") == "message":
            for each in citations_in(item.get("content"), 0, 0):
                yield each.title, each.url


def _arguments(item: Mapping[str, Any]) -> Any:
    """What a call was asked to do: its `arguments`, or the fields that are neither its identity nor its result."""
    for name in ("arguments", "input", "action", "operation"):
        value = item.get(name)
        if isinstance(value, dict):
            return {each: inner for each, inner in value.items() if each not in _RESULT_FIELDS}
        if value is not None:
            return value
    left_out = {*_OWN_FIELDS, *_RESULT_FIELDS, "name"}
    return {name: value for name, value in item.items() if name not in left_out and value is not None}


def _found(values: Sequence[Any], output: Mapping[str, Any]) -> Iterator[str]:
    """The texts in what a call has found, in their order; bytes and encrypted content are left out."""
    action, *results = values
    sources = action.get("sources") if isinstance(action, dict) else None
    found = [sources, *results, output.get("output"), output.get("result")]
    yield from texts_in(found, _FOUND_FIELDS, longest=100_000)
