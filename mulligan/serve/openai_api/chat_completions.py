"""`/v1/chat/completions`: each request starts a run with the given messages. It goes on when its client has gone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from mulligan.content import Part
from mulligan.serve.caller import Caller
from mulligan.serve.http_protocol import DONE, Calling, EventStream, Serving, frame
from mulligan.serve.idempotency import StartRequest
from mulligan.serve.ignored_fields import IgnoredFields
from mulligan.serve.json_body import parse_body
from mulligan.serve.openai_api.chat_text import (
    ChatText,
    chat_usage_json,
    finish_reason,
    images_in,
    lines_of,
    output_text,
)
from mulligan.serve.openai_api.input_items import chat_messages, run_input_json, split_instructions
from mulligan.serve.openai_api.openai_errors import error_json
from mulligan.serve.openai_api.request_fields import (
    CHAT_FIELDS,
    CHAT_REFUSED,
    flag,
    invalid,
    json_object,
    read_ignored,
    read_metadata,
    read_model,
)
from mulligan.serve.openai_api.responses import follow_while_connected
from mulligan.serve.openai_api.side_requests import ServedBy, side_requests_of
from mulligan.serve.openai_api.url_citations import chat_citations
from mulligan.serve.problems import Problem, problem_of
from mulligan.serve.runs import Runs
from mulligan.serve.served_request import IGNORED, ServedRequest
from mulligan.serve.shown_files import ShownFiles
from mulligan.serve.shown_json import shown_json
from mulligan.serve.turn_stream import waits_for_person
from mulligan.wire.event_types import Answered, RunEnded

ID_PREFIX = "chatcmpl-"
router = APIRouter(prefix="/v1/chat/completions", include_in_schema=False)


@dataclass(frozen=True)
class _Create:
    """A request for a completion. `run_input`: that of its run, as JSON."""

    served_by: ServedBy
    streams: bool
    with_usage: bool
    run_input: bytes
    ignored: IgnoredFields
    start: StartRequest

    @classmethod
    def read(cls, request: Request, caller: Caller, given: Any) -> _Create:
        body = json_object(given)
        ignored = read_ignored(body, CHAT_FIELDS, CHAT_REFUSED)
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise invalid("stream_options", f"is {shown_json(options)}; it must be an object.")
        streams, with_usage = flag(body, "stream"), flag(options, "include_usage")
        agent, metadata = read_model(body), read_metadata(body)
        instructions, messages = split_instructions(chat_messages(body.get("messages")))
        served_by = side_requests_of(request).served_by(request.headers, agent, instructions, messages)
        run_input = run_input_json(served_by.input_fields, messages, instructions, metadata, "messages")
        start = StartRequest.read(request, caller, ID_PREFIX, body)
        return cls(served_by, streams, with_usage, run_input, ignored, start)


@router.post("")
async def create(request: Request, runs: Serving, caller: Calling) -> Response:
    """Start a run with the messages, and answer with its output."""
    parsed = await parse_body(request, partial(_Create.read, request, caller))
    runs.take_place(caller)
    model_only = await parsed.served_by.check(runs, caller)
    start, ignored = parsed.start, parsed.ignored
    run_id = (await runs.start(caller, parsed.run_input, request=start, ignored=ignored, model_only=model_only)).id
    head: dict[str, Any] = {"id": run_id, "created": int(time.time()), "model": parsed.served_by.agent}
    if names := ServedRequest.current().ignored:
        head["metadata"] = {IGNORED: names}
    if parsed.streams:
        watched = await runs.watch(caller, run_id)
        files = ShownFiles(runs, caller, run_id)
        frames = completion_frames(head, watched, files, with_usage=parsed.with_usage)
        return EventStream(frames, on_disconnect=runs.stop_on_disconnect(caller, run_id))
    try:
        return JSONResponse(completion_json(head, *await _end(request, runs, caller, run_id)))
    finally:
        if (stop := runs.stop_on_disconnect(caller, run_id)) and await request.is_disconnected():
            stop()


async def _end(
    request: Request, runs: Runs, caller: Caller, run_id: str
) -> tuple[RunEnded, Answered | None, list[Part]]:
    """The end of a run, which a request without a stream waits for, the model's last answer, and the files of all."""
    answered, shown = None, ShownFiles(runs, caller, run_id)
    files: list[Part] = []
    where = f"The run {run_id!r} goes on: GET /v1/responses/{run_id} reads it."
    async for each in follow_while_connected(request, await runs.watch(caller, run_id)):
        event = each.event
        if waits_for_person(event) and await runs.pending(caller, run_id):  # somebody may have decided since
            raise Problem(
                422, "waiting_for_person", f"A call waits for a person: decide it, and the run continues. {where}"
            )
        if event.type == "answered":
            answered = event
            files += await shown.of(event)
        if event.type == "run_ended":
            return _with_result(event, run_id), answered, files
    raise Problem(
        422, "still_running", f"The run has not ended in time; use stream or /v1/responses with background. {where}"
    )


def _with_result(end: RunEnded, run_id: str) -> RunEnded:
    """The end of a run that has a result.

    Raises:
        Problem: the run has failed, or was cancelled.
    """
    if end.result is None:
        message = f"{end.error.kind}: {end.error.message}" if end.error else f"the run was {end.status}"
        raise Problem(422, "run_failed", f"The run {run_id!r} has no result: {message}")
    return end


def completion_json(
    head: dict[str, Any], end: RunEnded, answered: Answered | None, files: Sequence[Part] = ()
) -> dict[str, Any]:
    """The completion of a run that has a result. `answered`: the model's last answer. `files`: what it has made in all."""
    text = output_text(end)
    annotations = chat_citations(answered.citations, text) if answered and answered.text == text else []
    said = f"{text}{lines_of(files, end)}"
    message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None, "annotations": annotations}
    message |= {"images": images} if (images := images_in(files)) else {}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(end)}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": chat_usage_json(end)}


async def completion_frames(
    head: dict[str, Any], watched: AsyncIterator[Any] | None, shown: ShownFiles, *, with_usage: bool
) -> AsyncIterator[bytes]:
    """The chunks of a run to its end; the last one is the error if it has failed."""
    chat, more = ChatText(head["id"]), {"usage": None} if with_usage else {}

    def chunk(delta: dict[str, Any], finished: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finished}
        return frame({**head, "object": "chat.completion.chunk", "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    assert watched is not None
    sent = 0
    files: list[Part] = []
    async with aclosing(watched) as events:  # type: ignore[type-var]
        try:
            async for each in events:
                for piece in chat.pieces(each.event):
                    sent += len(piece)
                    yield chunk({"content": piece})
                files += (new := await shown.of(each.event))
                if images := images_in(new, len(files) - len(new)):
                    yield chunk({"images": images})
                if chat.view.end is None:
                    continue
                end = _with_result(chat.view.end, head["id"])
                last = chat.view.last_text
                if last == output_text(end) and (annotations := chat_citations(chat.citations, last, sent - len(last))):
                    yield chunk({"annotations": annotations})
                if lines := lines_of(files, end):
                    yield chunk({"content": lines})
                yield chunk({}, finish_reason(end))
                if with_usage:
                    usage = chat_usage_json(end)
                    yield frame({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
                yield DONE
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told that the stream ends
            yield frame(error_json(problem_of(error)))
