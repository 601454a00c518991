"""`/v1/conversations`: the responses that continue each other, read as one list of items.

A conversation has the id of its first response. The first continuation of a response belongs to its conversation. Each
further one is a branch, and the first response of a conversation of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from mulligan.client.origins.chained_run import ChainedRun, newest_continuation
from mulligan.client.read_run import read_messages
from mulligan.serve.caller import Caller
from mulligan.serve.http_protocol import Calling, Serving
from mulligan.serve.openai_api.item_ids import CONVERSATION_PREFIX, item_id
from mulligan.serve.openai_api.request_fields import invalid
from mulligan.serve.openai_api.response_form import Form, ResponseForm
from mulligan.serve.runs import Runs

_CONTINUATION = re.compile(r"(.+)-resumed(?:-\d+)?")
Json = dict[str, Any]
router = APIRouter(prefix="/v1/conversations", include_in_schema=False)


def conversation_of(response_id: str) -> str:
    """The id of the conversation that a response belongs to."""
    match = _CONTINUATION.fullmatch(response_id)
    return match[1] if match else response_id


async def newest_run(runs: Runs, caller: Caller, conversation: str) -> ChainedRun:
    """The run of the newest response of a conversation, by its id or by that of any response of it.

    Raises:
        Problem: there is none that the caller may see.
    """
    run = await ChainedRun.of(await runs.describe(caller, conversation))
    return await newest_continuation(runs.client, run)


@router.get("/{conversation:path}/items")
async def list_items(
    conversation: str,
    runs: Serving,
    caller: Calling,
    form: Form,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Json:
    """The items of a conversation, as OpenAI's: the newest first, unless `order` is `asc`; those after the item `after`."""
    newest = (await newest_run(runs, caller, conversation)).description.id
    await runs.describe(caller, newest)
    # A response begins with the messages of the one before it.
    messages = await read_messages(runs.client, runs.client.get_workflow_handle(newest))
    items = list(_items(messages, conversation_of(newest), form))
    if order == "desc":
        items.reverse()
    first = 0
    if after is not None:
        first = next((number for number, item in enumerate(items, 1) if item["id"] == after), 0)
        if not first:
            raise invalid("after", f"is {after[:80]!r}, which is not the id of an item of this conversation.")
    page = items[first : first + limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": first + limit < len(items)}


@router.get("/{conversation:path}")
async def retrieve(conversation: str, runs: Serving, caller: Calling) -> Json:
    """Return a conversation."""
    described = await runs.describe(caller, conversation_of(conversation))
    created = int(described.start_time.timestamp())
    return {"id": described.id, "object": "conversation", "created_at": created, "metadata": {}}


def _items(messages: Sequence[Json], conversation: str, form: ResponseForm) -> Iterator[Json]:
    """Messages as items. The result of a call is a part of its item."""
    results = {(number, each["call_id"]): each for number, each in _with_answers(messages) if each["role"] == "tool"}
    for number, message in enumerate(messages):
        match message["role"]:
            case "user":
                yield _message_item(number, conversation, "user", [_input_part(part) for part in _parts(message)])
            case "assistant":
                if text := message.get("text"):
                    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
                    yield _message_item(number, conversation, "assistant", [part])
                for call in message.get("tool_calls") or ():
                    name = item_id(CONVERSATION_PREFIX, f"{number}_{call['id']}", conversation)
                    yield _call_item(call, name, results.get((number, call["id"])), form)


def _with_answers(messages: Sequence[Json]) -> Iterator[tuple[int, Json]]:
    """Each message with the number of the model's answer before it: models use ids of calls again."""
    answer = 0
    for number, message in enumerate(messages):
        answer = number if message["role"] == "assistant" else answer
        yield answer, message


def _message_item(number: int, conversation: str, role: str, content: list[Json]) -> Json:
    item = {"id": item_id(CONVERSATION_PREFIX, str(number), conversation), "type": "message", "role": role}
    return {**item, "status": "completed", "content": content}


def _parts(message: Json) -> list[Json]:
    return message.get("content") or [{"type": "text", "text": message.get("text", "")}]


def _input_part(part: Json) -> Json:
    inline = f"data:{part['media_type']};base64,{part['data']}" if part.get("data") else ""
    source = part.get("url") or inline or part.get("ref") or ""
    match part["type"]:
        case "text":
            return {"type": "input_text", "text": part["text"]}
        case "image":
            return {"type": "input_image", "image_url": source, "detail": "auto"}
    return {"type": "input_file", "file_url": source, "filename": part.get("name")}


def _call_item(call: Json, name: str, result: Json | None, form: ResponseForm) -> Json:
    error = (result or {}).get("error")
    status = "in_progress" if result is None else "failed" if error else "completed"
    item = form.call_item(name, call["name"], call["arguments"], status)
    if result is not None and error:
        item["error"] = form.call_error(result.get("text", ""))
    elif result is not None:
        item["output"] = result["text"]
    return item
