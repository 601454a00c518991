"""The UI message stream of Vercel's AI SDK, `/ai-sdk/{agent}`: a turn of a conversation is one message of the assistant.

docs/serving-chat.md has a table of what each event becomes. What the AI SDK has no chunk for is a data part
`data-mulligan` with our event.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, Field
from sse_starlette import EventSourceResponse
from starlette.responses import JSONResponse

from mulligan.serve.client_parts import as_prompt, media_part
from mulligan.serve.http_protocol import SEND_SECONDS, Protocol, caller_of, runs_of
from mulligan.serve.json_body import MOST_MESSAGES, JsonRoute, check_count
from mulligan.serve.problems import Problem, problem_of
from mulligan.serve.replies import Reply, send_replies
from mulligan.serve.runs import Runs
from mulligan.serve.security import Caller
from mulligan.serve.threads import Thread, UserMessage
from mulligan.serve.turn_stream import TurnStream, Wait, WaitingCall, open_turn
from mulligan.wire.event_types import (
    Answered,
    Decided,
    Event,
    MessageReceived,
    ModelFallback,
    RunEnded,
    RunStarted,
    StepStarted,
    SubRunEvent,
    TextDelta,
    TextVoid,
    ToolCallSettled,
    ToolCallStarted,
    Waiting,
)

PREFIX = "/ai-sdk"
HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
DONE = b"data: [DONE]\n\n"
ABORTED = {"cancelled", "canceled", "terminated"}
FINISH_REASONS = {"completed": "stop", "stopped": "interrupted", "truncated": "length", "refused": "content-filter"}

Json = dict[str, Any]
Serving = Annotated[Runs, Depends(runs_of)]
Calling = Annotated[Caller, Depends(caller_of)]
STREAM: dict[int | str, Json] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
router = APIRouter(prefix=PREFIX, tags=["ai-sdk"], route_class=JsonRoute)


class ChatRequest(BaseModel):
    """What `DefaultChatTransport` sends. Of `messages` only the last one is read."""

    id: str
    messages: Annotated[list[Json], Field(max_length=MOST_MESSAGES, fail_fast=True)]
    trigger: str = "submit-message"


@router.post("/{agent}", response_class=Response, responses=STREAM)
async def send(agent: str, body: ChatRequest, runs: Serving, caller: Calling) -> Response:
    """Send the user's message, or replies to approvals and questions."""
    if body.trigger != "submit-message":
        raise Problem(
            422, "invalid_input", f'"trigger" is {body.trigger[:80]!r}; only "submit-message" is served: what an agent '
            "has done cannot be generated again. Send a new message.",
        )  # fmt: skip
    thread = Thread(runs, caller, agent, body.id)
    runs.take_place(caller)
    last = body.messages[-1] if body.messages else {}
    check_count("parts", last.get("parts"))
    if last.get("role") == "user":
        turn = await thread.reply(_user_message(last))
        return _respond(await open_turn(runs, caller, turn.run_id), is_whole=True)
    replies = _replies(last)
    if not replies:
        raise Problem(422, "invalid_input", "The last message is neither a user's nor one with replies to the agent.")
    newest = await thread.newest()
    if newest is None or newest.run_id != last.get("id"):
        raise Problem(409, "not_the_newest", "The replies are not to the newest message of this conversation; load it.")
    since, decided = await send_replies(runs, caller, newest.run_id, replies)
    return _respond(await open_turn(runs, caller, newest.run_id, since=since, decided=decided), is_whole=False)


@router.get("/{agent}/{chat:path}/stream", response_class=Response, responses=STREAM)
async def resume(agent: str, chat: str, runs: Serving, caller: Calling) -> Response:
    """The newest message from its beginning, while its run is open; 204 if no run is."""
    newest = await Thread(runs, caller, agent, chat).newest()
    if newest is None or not newest.is_open:
        return Response(status_code=204)
    return _respond(await open_turn(runs, caller, newest.run_id), is_whole=True)


def _user_message(message: Json) -> UserMessage:
    parts, message_id = message.get("parts"), message.get("id")
    if not isinstance(parts, list) or not isinstance(message_id, str | None):
        raise Problem(
            422, "invalid_input", 'The user\'s message needs an "id", which is a text, and a list of "parts".'
        )
    return UserMessage(message_id, as_prompt([_part(part) for part in parts]))


def _part(part: Any) -> Json:
    match part:
        case {"type": "text"}:
            return {"type": "text", "text": str(part.get("text", ""))}
        case {"type": "file", "url": url}:
            media_type = str(part.get("mediaType") or "")
            kind = {"image": "image", "audio": "audio"}.get(media_type.partition("/")[0], "file")
            return media_part(kind, url, media_type=media_type or None, name=part.get("filename"))
    raise Problem(422, "invalid_input", "The user's message has a part that is not text, and no file with a URL.")


def _replies(message: Json) -> list[Reply]:
    """The replies in the parts of an assistant's message: decisions on approvals, and outputs of tools that ask."""
    replies: list[Reply] = []
    parts = message.get("parts")
    for part in parts if isinstance(parts, list) else ():
        approval, asked = _object(part, "approval"), _object(_object(part, "toolMetadata"), "mulligan")
        state = part.get("state") if isinstance(part, dict) else None
        if state == "approval-responded":
            approved, reason = approval.get("approved"), approval.get("reason")
            replies.append(
                Reply(
                    wait_id=str(approval.get("id")),
                    approved=approved if isinstance(approved, bool) else None,
                    reason=reason if isinstance(reason, str) else None,
                )
            )
        elif state in ("output-available", "output-error") and "wait" in asked:
            output = part.get("output") if state == "output-available" else None
            text = output if isinstance(output, str | None) else json.dumps(output, ensure_ascii=False)
            replies.append(Reply(wait_id=str(asked["wait"]), text=text))
    return replies


def _object(value: Any, name: str) -> Json:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _respond(stream: TurnStream, *, is_whole: bool) -> Response:
    """`is_whole`: the message from its beginning; otherwise what comes after the part that the client has."""
    frames = _frames(stream, Translator(is_whole=is_whole, replied=stream.decided))
    return EventSourceResponse(frames, sep="\n", headers=HEADERS, ping=15, send_timeout=SEND_SECONDS)


async def _frames(stream: TurnStream, translator: Translator) -> AsyncIterator[bytes]:
    """The chunks of the message, and the mark of the end."""
    try:
        yield _frame({"type": "start", "messageId": stream.run_id})
        for event in stream.earlier:
            translator.translate(event)
        translator.forget_open_parts()
        async for event in stream.live():
            for chunk in translator.translate(event):
                yield _frame(chunk)
        if stream.waits:
            for chunk in translator.paused(stream.waits):
                yield _frame(chunk)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client is told that the stream ends
        yield _frame({"type": "error", "errorText": problem_of(error).detail})
    yield DONE


def _frame(chunk: Json) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"


class Translator:
    """Our events as chunks of the AI SDK's UI message stream."""

    def __init__(self, *, is_whole: bool, replied: Collection[WaitingCall] = ()) -> None:
        """`replied`: the calls that this request has decided or answered."""
        self._is_whole = is_whole
        self._sub_run_calls = {call for call in replied if call.sub_run}
        """The calls of sub-agents that are parts of the message: those that waited for a person."""
        self._is_step_open = False
        self._text: str | None = None
        """The text that was sent of the part that is open; None: none is open."""
        self._texts = 0
        self._raw: dict[str, str] = {}
        """The arguments as the model wrote them, by the call's id."""
        self._inputs: dict[str, Any] = {}
        """The input that the client has, by the call's id."""
        self._asked: set[str] = set()
        """The calls that waited for an approval."""

    def forget_open_parts(self) -> None:
        """The client has what was translated so far."""
        self._text, self._is_step_open = None, False

    def translate(self, event: Event) -> list[Json]:
        """What is sent for an event."""
        match event:
            case StepStarted():
                sent = [*self._finish_step(), {"type": "start-step"}]
                self._is_step_open = True
                return sent
            case TextDelta():
                return self._write(event.text)
            case TextVoid() | ModelFallback():
                return [*self._reset_step(), _data(event)]
            case Answered():
                return self._answer(event)
            case Waiting() if event.kind == "approval":
                self._asked.add(event.call_id)
                return self._input(event.call_id, event.name, event.arguments)
            case Decided() if event.call_id in self._asked:
                return [*self._decision(event), _data(event)]
            case ToolCallStarted():
                return self._input(event.call_id, event.name, event.arguments)
            case ToolCallSettled():
                return self._settle(event)
            case MessageReceived():
                text = {"type": "text", "text": event.text}
                return [{"type": "steering-message", "id": f"message-{event.offset}", "parts": [text]}]
            case SubRunEvent():
                return [*self._sub_run_event(event), _data(event)]
            case RunEnded():
                return [*self._reset_step(), *self._finish_step(), _data(event), self._end(event)]
        return [] if isinstance(event, RunStarted) else [_data(event)]

    def paused(self, waits: Sequence[Wait]) -> list[Json]:
        """The end of a stream at calls that wait for people."""
        sent: list[Json] = []
        for wait in waits:
            fields = wait.fields
            if fields["kind"] == "approval":
                request = {"type": "tool-approval-request", "approvalId": wait.id, "toolCallId": wait.call.id}
                sent += [*self._input(wait.call.id, fields["tool"], fields["arguments"]), request]
            elif wait.call.id not in self._inputs:
                # A tool that the page runs: it asks the person, and the output is the answer.
                asked = {"wait": wait.id, "question": fields["text"]}
                chunk = {"type": "tool-input-available", "toolCallId": wait.call.id, "toolName": fields["tool"]}
                sent.append({**chunk, "input": fields["arguments"], "toolMetadata": {"mulligan": asked}})
        return [*sent, *self._finish_step(), {"type": "finish", "finishReason": "tool-calls"}]

    def _write(self, text: str) -> list[Json]:
        sent: list[Json] = []
        if self._text is None:
            self._text = ""
            self._texts += 1
            sent.append({"type": "text-start", "id": f"text-{self._texts}"})
        if text:
            self._text += text
            sent.append({"type": "text-delta", "id": f"text-{self._texts}", "delta": text})
        return sent

    def _reset_step(self) -> list[Json]:
        """Take back the text that is being written: a step has no other parts until it is answered."""
        was_open, self._text = self._text is not None, None
        return [{"type": "reset-step"}] if was_open else []

    def _finish_step(self) -> list[Json]:
        was_open, self._is_step_open = self._is_step_open, False
        return [{"type": "finish-step"}] if was_open else []

    def _answer(self, event: Answered) -> list[Json]:
        sent: list[Json] = []
        if self._text is not None and not event.text.startswith(self._text):
            sent += self._reset_step()
        if event.text:
            sent += self._write(event.text[len(self._text or "") :])
        if self._text is not None:
            sent.append({"type": "text-end", "id": f"text-{self._texts}"})
            self._text = None
        for call in event.tool_calls:
            self._raw[call.id] = call.arguments
            sent.append({"type": "tool-input-start", "toolCallId": call.id, "toolName": call.name})
            sent.append({"type": "tool-input-delta", "toolCallId": call.id, "inputTextDelta": call.arguments})
        return sent

    def _input(self, call_id: str, name: str, arguments: Any) -> list[Json]:
        """The validated arguments of a call, unless the client has the same ones. The page does not run the tool."""
        if call_id in self._inputs and self._inputs[call_id] == arguments:
            return []
        self._inputs[call_id] = arguments
        chunk = {"type": "tool-input-available", "toolCallId": call_id, "toolName": name, "input": arguments}
        return [{**chunk, "providerExecuted": True}]

    def _decision(self, event: Decided) -> list[Json]:
        """A decision that the client does not know: it has sent those of its own."""
        if not self._is_whole:
            return []
        approval_id = f"{event.offset}:{event.call_id}"
        response: Json = {"type": "tool-approval-response", "approvalId": approval_id}
        response["approved"] = event.decision == "approve"
        if event.reason is not None:
            response["reason"] = event.reason
        return [{"type": "tool-approval-request", "approvalId": approval_id, "toolCallId": event.call_id}, response]

    def _sub_run_event(self, event: SubRunEvent) -> list[Json]:
        """What is sent for a call of a sub-agent that waits for a person, or has waited: it is a part of the message."""
        inner: Event = event
        run_id = ""
        while isinstance(inner, SubRunEvent):
            run_id, inner = inner.source.id, inner.event
        match inner:
            case Waiting() if inner.kind == "approval":
                call = WaitingCall(inner.call_id, run_id)
                self._sub_run_calls.add(call)
                self._asked.add(call.id)
                return self._input(call.id, inner.name, inner.arguments)
            case ToolCallSettled() if (call := WaitingCall(inner.call_id, run_id)) in self._sub_run_calls:
                # The client has the input: it has just replied to it, or it was sent above.
                error = inner.result.error
                if error is None:
                    return [{"type": "tool-output-available", "toolCallId": call.id, "output": inner.result.text}]
                if error.kind == "denied":
                    return [{"type": "tool-output-denied", "toolCallId": call.id}]
                return [{"type": "tool-output-error", "toolCallId": call.id, "errorText": inner.result.text}]
        return []

    def _settle(self, event: ToolCallSettled) -> list[Json]:
        call_id, error, text = event.call_id, event.result.error, event.result.text
        if error is None:
            known = call_id in self._inputs
            announced = [] if known else self._input(call_id, event.name, _parsed(self._raw.get(call_id, "")))
            return [*announced, {"type": "tool-output-available", "toolCallId": call_id, "output": text}]
        if error.kind == "denied" and call_id in self._asked:
            return [{"type": "tool-output-denied", "toolCallId": call_id}]
        if call_id in self._inputs:
            return [{"type": "tool-output-error", "toolCallId": call_id, "errorText": text}]
        chunk = {"type": "tool-input-error", "toolCallId": call_id, "toolName": event.name, "errorText": text}
        return [{**chunk, "input": _parsed(self._raw.get(call_id, "")), "providerExecuted": True}]

    def _end(self, event: RunEnded) -> Json:
        if event.status in ABORTED:
            return {"type": "abort", "reason": f"The run was {event.status}."}
        if event.error is not None or event.result is None:
            message = event.error.message if event.error else f"The run ended: {event.status}."
            return {"type": "error", "errorText": message}
        return {"type": "finish", "finishReason": FINISH_REASONS.get(event.status, "other")}


def _data(event: Event) -> Json:
    """An event of our own. Text that is void is not a part of the message; the others are, once each."""
    data = {"type": "data-mulligan", "data": event.model_dump(mode="json")}
    offset = getattr(event, "offset", None)
    return {**data, "transient": True} if offset is None else {**data, "id": f"event-{offset}"}


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _refuse(problem: Problem) -> Response:
    """A problem before the stream. The AI SDK shows the body as the message of its error."""
    return JSONResponse({"error": problem.detail, "code": problem.code}, problem.status, headers=problem.headers)


AI_SDK = Protocol(prefix=PREFIX, router=router, refuse=_refuse)
