"""The UI message stream of Vercel's AI SDK, `/ai-sdk/{agent}`: a turn of a conversation is one message of the assistant.

docs/ai-sdk.md has a table of what each event becomes. What the AI SDK has no chunk for is a data part
`data-mulligan` with our event.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from mulligan.content import Media, Part, described
from mulligan.run_view import changes
from mulligan.run_view.run_view import RunView
from mulligan.run_view.step_view import DENIED, CallView, StepView
from mulligan.serve.caller import Caller
from mulligan.serve.caller_rights import unread
from mulligan.serve.client_metadata import check_metadata, is_short, read_metadata
from mulligan.serve.client_parts import as_prompt, joined_instructions, media_part
from mulligan.serve.http_protocol import (
    DONE,
    ENDED,
    STREAM,
    Calling,
    EventStream,
    Protocol,
    Serving,
    problem_body,
    problems,
)
from mulligan.serve.json_body import MOST_MESSAGES, JsonRoute, check_count
from mulligan.serve.problems import Problem
from mulligan.serve.replies import PersonReply, send_replies
from mulligan.serve.runs import Runs
from mulligan.serve.served_request import IGNORED
from mulligan.serve.shown_files import ShownFiles
from mulligan.serve.shown_json import shown_json
from mulligan.serve.threads import MESSAGE_ID, THREAD_ID, Intent, Thread, ThreadTurn, UserMessage
from mulligan.serve.turn_stream import VOID_CALL, TurnStream, Wait, WaitingCall, open_turn, turn_frames
from mulligan.serve.ui_message import UIMessage
from mulligan.wire.event_types import Decided, Event, MessageReceived, RunEnded

Json = dict[str, Any]
PREFIX = "/ai-sdk"
HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
ABORTED = {"cancelled", "terminated"}
TOLD = {"step_started", "text_delta", "answered", "tool_call_started", "tool_call_settled", "message"}
TOLD |= {"run_started", "run_ended", "tool_input_delta"}
"""The events that the AI SDK has chunks for. Those of calls that wait for approval are told too."""
NEWEST, VERSION_6 = 7, 6
"""Versions of npm's `ai`. 6 has no chunks for void text, for decisions of others and for messages that join a run."""
Version = Annotated[int, Query(ge=VERSION_6, le=NEWEST)]
RESET: Json = {"type": "reset-step"}
VOID = " […] (This text was not completed, and is void.)"
NO_RESULT = "There is no result yet."
FINISH_REASONS = {"completed": "stop", "stopped": "interrupted", "truncated": "length", "refused": "content-filter"}

TRIGGERS: dict[str, Intent] = {"submit-message": "say", "regenerate-message": "regenerate"}
OWN_METADATA = {THREAD_ID, MESSAGE_ID, IGNORED}
MOST_TURNS, MOST_CHARS = 100, 8_000_000
"""The newest turns that a page is given, and about how many characters they have together."""

PROBLEM = problem_body("error", "code")
OF_RUN = problems(404, 409, body=PROBLEM)
router = APIRouter(prefix=PREFIX, tags=["ai-sdk"], route_class=JsonRoute)


class ChatRequest(BaseModel):
    """What `DefaultChatTransport` sends. Of `messages` only the last one is read, and what system messages say."""

    model_config = ConfigDict(extra="allow")

    id: str
    messages: Annotated[list[Json], Field(max_length=MOST_MESSAGES, fail_fast=True)]
    trigger: str = "submit-message"
    message_id: Annotated[str | None, Field(alias="messageId")] = None
    """The user's message that the last one takes the place of; or the message whose answer is to be replaced."""
    metadata: Any = None
    """Beside that of the message: `body: {metadata: …}` of the transport. A customer's is `ctx.client_metadata`."""


@router.post("/{agent}", response_class=Response, responses={**STREAM, **OF_RUN})
async def send(agent: str, body: ChatRequest, runs: Serving, caller: Calling, sdk: Version = NEWEST) -> Response:
    """Send the user's message, or replies to approvals and questions; or have a message answered again."""
    runs.ignore(unread(caller, "ChatRequest", (body.model_extra or {}).items()))
    if body.trigger not in TRIGGERS:
        raise Problem(422, "invalid_input", f'"trigger" is {body.trigger[:80]!r}; served are {" and ".join(TRIGGERS)}.')
    thread = Thread(runs, caller, agent, body.id)
    runs.take_place(caller)
    last = body.messages[-1] if body.messages else {}
    check_count("parts", last.get("parts"))
    if last.get("role") == "user":
        intent = TRIGGERS[body.trigger]
        if intent == "say" and body.message_id is not None and body.message_id == last.get("id"):
            intent = "edit"
        message = _user_message(last, _instructions(body.messages), body.metadata)
        turn = await thread.reply(message, intent, replaces=body.message_id or "")
        return _respond(await open_turn(runs, caller, turn.run_id), sdk, is_whole=True)
    replies = _replies(last)
    if not replies:
        role = shown_json(last.get("role"))
        raise Problem(
            422, "invalid_input", f"The last message has the role {role} and no replies to the agent; "
            "end with a user's message, or with one that has replies.",
        )  # fmt: skip
    newest = await thread.newest()
    if newest is None or newest.run_id != last.get("id"):
        raise Problem(409, "not_the_newest", "The replies are not to the newest message of this conversation; load it.")
    since, decided = await send_replies(runs, caller, newest.run_id, replies)
    return _respond(await open_turn(runs, caller, newest.run_id, since=since, decided=decided), sdk, is_whole=False)


@router.get("/{agent}/{chat:path}/stream", response_class=Response, responses={**STREAM, **ENDED, **OF_RUN})
async def resume(agent: str, chat: str, runs: Serving, caller: Calling, sdk: Version = NEWEST) -> Response:
    """The newest message from its beginning, while its run is open; 204 if no run is."""
    newest = await Thread(runs, caller, agent, chat).newest()
    if newest is None or not newest.is_open:
        return Response(status_code=204)
    if (
        sdk == VERSION_6
    ):  # it adds what comes to the message that the page has: a turn that waits is in the conversation
        so_far = TurnStream(runs, caller, newest.run_id)
        await so_far.read()
        if so_far.waits:
            return Response(status_code=204)
    return _respond(await open_turn(runs, caller, newest.run_id), sdk, is_whole=True)


@router.get("/{agent}/{chat:path}", response_model=list[Json], responses=OF_RUN)
async def read(agent: str, chat: str, runs: Serving, caller: Calling, sdk: Version = NEWEST) -> Response:
    """The conversation as UIMessages, without the answer of a turn in flight. One that waits for people is not in flight."""
    messages: list[Json] = []
    size = turns = 0
    thread = Thread(runs, caller, agent, chat)
    async for turn in thread.turns():
        answer, answer_size = await _answer(runs, caller, turn, sdk)
        question = _shown_message(turn, thread.own_metadata(turn))
        size, turns = size + answer_size + len(json.dumps(question, ensure_ascii=False)), turns + 1
        if messages and size > MOST_CHARS:
            break
        messages[:0] = [question, answer] if answer else [question]
        if turns == MOST_TURNS:
            break
    return Response(json.dumps(messages, ensure_ascii=False).encode(), media_type="application/json")


async def _answer(runs: Runs, caller: Caller, turn: ThreadTurn, sdk: int) -> tuple[Json | None, int]:
    """The answer of a turn, and about how many characters it has. None: the turn is in flight."""
    stream = TurnStream(runs, caller, turn.run_id)
    await stream.read()
    if not (stream.is_ended or stream.waits):
        return None, 0
    translator, message = Translator(is_whole=True), UIMessage(turn.run_id)
    files = ShownFiles(runs, caller, turn.run_id)
    for event in stream.earlier:
        for chunk in translator.translate(await files.within(event), stream.token):
            message.add(_as_6(chunk) if sdk == VERSION_6 else chunk)
    for chunk in translator.paused(stream.waits):
        message.add(chunk)
    return message.to_json(), message.size


def _shown_message(turn: ThreadTurn, metadata: Mapping[str, str]) -> Json:
    """The message of the user that a turn answers. `metadata`: of its run, as the caller is shown it."""
    run_input = turn.input
    parts = [run_input.prompt] if isinstance(run_input.prompt, str) else run_input.prompt or []
    message: Json = {"id": run_input.metadata.get(MESSAGE_ID) or f"{turn.run_id}-user", "role": "user"}
    return {**message, **({"metadata": metadata} if metadata else {}), "parts": [_shown_part(part) for part in parts]}


def _shown_part(part: str | Part) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Media) or part.ref:
        return {"type": "text", "text": described([part])}  # no page can load what is stored elsewhere
    file = {"type": "file", "mediaType": part.media_type, "url": part.url or part.data_url}
    return {**file, "filename": part.name} if part.name else file


def _instructions(messages: Sequence[Json]) -> str:
    """What the system messages of a page say."""
    lists = [each.get("parts") for each in messages if each.get("role") == "system"]
    parts = [part for each in lists if isinstance(each, list) for part in each if isinstance(part, dict)]
    return joined_instructions(str(part.get("text", "")) for part in parts)


def _user_message(message: Json, instructions: str, metadata: Any) -> UserMessage:
    parts, message_id = message.get("parts"), message.get("id")
    if not isinstance(parts, list) or not isinstance(message_id, str | None):
        raise Problem(
            422, "invalid_input", 'The user\'s message needs an "id", which is a text, and a list of "parts".'
        )
    return UserMessage(
        message_id, as_prompt([_part(part) for part in parts]), instructions, _metadata(metadata, message)
    )


def _metadata(of_request: Any, message: Json) -> dict[str, str]:
    """The client's metadata. A message's is the page's own: other values than short texts are left out of it."""
    of_message = _object(message, "metadata")
    texts = {name: value for name, value in of_message.items() if isinstance(value, str) and is_short(name, value)}
    given = {**read_metadata(of_request), **texts}
    metadata = {name: value for name, value in given.items() if name not in OWN_METADATA}
    check_metadata(metadata)
    return metadata


def _part(part: Any) -> Json:
    match part:
        case {"type": "text"}:
            return {"type": "text", "text": str(part.get("text", ""))}
        case {"type": "file", "url": url}:
            media_type = str(part.get("mediaType") or "")
            kind = {"image": "image", "audio": "audio"}.get(media_type.partition("/")[0], "file")
            return media_part(kind, url, media_type=media_type or None, name=part.get("filename"))
    raise Problem(422, "invalid_input", "The user's message has a part that is not text, and no file with a URL.")


def _replies(message: Json) -> list[PersonReply]:
    """The replies in the parts of an assistant's message: decisions on approvals, and outputs of tools that ask."""
    replies: list[PersonReply] = []
    parts = message.get("parts")
    for part in parts if isinstance(parts, list) else ():
        approval, asked = _object(part, "approval"), _object(_object(part, "toolMetadata"), "mulligan")
        state = part.get("state") if isinstance(part, dict) else None
        if state == "approval-responded":
            approved, reason = approval.get("approved"), approval.get("reason")
            replies.append(
                PersonReply(
                    wait_id=str(approval.get("id")),
                    approved=approved if isinstance(approved, bool) else None,
                    reason=reason if isinstance(reason, str) else None,
                )
            )
        elif state in ("output-available", "output-error") and "wait" in asked:
            output = part.get("output") if state == "output-available" else None
            text = output if isinstance(output, str | None) else json.dumps(output, ensure_ascii=False)
            replies.append(PersonReply(wait_id=str(asked["wait"]), text=text))
    return replies


def _object(value: Any, name: str) -> Json:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _respond(stream: TurnStream, sdk: int, *, is_whole: bool) -> Response:
    return EventStream(message_frames(stream, sdk, is_whole=is_whole), HEADERS)


async def message_frames(stream: TurnStream, sdk: int = NEWEST, *, is_whole: bool) -> AsyncIterator[bytes]:
    """`is_whole`: the message from its beginning; otherwise what comes after the part that the client has."""
    translator = Translator(is_whole=is_whole, replied=stream.decided, sdk=sdk)
    for event in stream.earlier:
        translator.translate(event)
    translator.view.leave()
    started = [{"type": "start", "messageId": stream.run_id}]
    async for each in turn_frames(started, stream, translator, stream.files()):
        yield each
    yield DONE


class Translator:
    """The changes of a run as chunks of the AI SDK's UI message stream."""

    def __init__(self, *, is_whole: bool, replied: Collection[WaitingCall] = (), sdk: int = NEWEST) -> None:
        """`replied`: the calls that this request has decided or answered. `sdk`: the version of npm's `ai`."""
        self.view = RunView(most_steps=1)
        self._is_whole, self._replied, self._sdk = is_whole, replied, sdk
        self._inputs: dict[str, Any] = {}
        """The input that the client has, by the call's id."""
        self._approvals: dict[str, str] = {}
        """The ids of the approvals that the client was asked for, by the call's id."""
        self._texts = 0
        """How many texts were begun. The view may have the next one already: an event may end a text and begin another."""
        self._token = ""

    def translate(self, event: Event, token: str = "") -> list[Json]:
        """What is sent for an event. An approval is asked for at once: its id has the token."""
        self._token = token
        sent = [each for change in self.view.add(event) for each in self._translated(change)]
        sent = [each for number, each in enumerate(sent) if each is not RESET or RESET not in sent[:number]]
        if self._sdk == VERSION_6:
            sent = [_as_6(each) for each in sent if each["type"] != "tool-approval-response"]
        is_told = event.type in TOLD or (event.type == "waiting" and event.kind == "approval")
        return sent if is_told else [*sent, _data(event)]

    def paused(self, waits: Sequence[Wait]) -> list[Json]:
        """The end of a stream at calls that wait for people."""
        sent: list[Json] = []
        for wait in waits:
            fields = wait.fields
            if fields["kind"] == "approval":
                edits = fields.get("edits", 0)
                sent += self._approval(wait.call, fields["tool"], fields["arguments"], wait.token, edits)
            elif wait.call.id not in self._inputs:
                # A tool that the page runs: it asks the person, and the output is the answer.
                asked = {"wait": wait.id, "question": fields["text"]}
                chunk = {"type": "tool-input-available", "toolCallId": wait.call.id, "toolName": fields["tool"]}
                sent.append({**chunk, "input": fields["arguments"], "toolMetadata": {"mulligan": asked}})
        sent += self._without_result(waits)
        closed = [each for change in self.view.leave() for each in self._translated(change)]
        return [*sent, *closed, {"type": "finish", "finishReason": "tool-calls"}]

    def _without_result(self, waits: Sequence[Wait]) -> list[Json]:
        """A result for the time being, for each call of the step that has none and asks nobody itself, as it waits for a
        sub-agent, or is deferred: pages send a decision once no other call of the step is without a result.
        """
        asking = {wait.call.id for wait in waits}
        is_approval = any(wait.fields["kind"] == "approval" for wait in waits)
        calls = self.view.newest_step.calls.values() if self.view.newest_step else ()
        sent: list[Json] = []
        for call in calls:
            # For an answer to a question, calls do not count that the page does not run.
            if not (call.settled or call.id in asking) and (is_approval or call.id not in self._inputs):
                if call.id not in self._inputs:
                    sent += self._input(call.id, call.name, _parsed(call.raw_arguments))
                sent.append({"type": "tool-output-available", "toolCallId": call.id, "output": NO_RESULT})
        return sent

    def failed(self, problem: Problem) -> Json:
        """The end of a stream that cannot go on."""
        return {"type": "error", "errorText": problem.detail}

    def _translated(self, change: changes.Change) -> list[Json]:
        match change:
            case changes.StepOpened():
                return [{"type": "start-step"}]
            case changes.StepClosed():
                return [{"type": "finish-step"}]
            case changes.TextOpened():
                self._texts += 1
                return [{"type": "text-start", "id": self._text_id}]
            case changes.TextExtended(text=text):
                return [{"type": "text-delta", "id": self._text_id, "delta": text}]
            case changes.TextClosed(is_void=True) if self._sdk == VERSION_6:
                void = {"type": "text-delta", "id": self._text_id, "delta": VOID}
                return [void, {"type": "text-end", "id": self._text_id}]
            case changes.TextClosed(is_void=True):
                return [RESET]  # a step has nothing else but calls that are void too until it is answered
            case changes.TextClosed():
                return [{"type": "text-end", "id": self._text_id}]
            case changes.StepAnswered(step):
                return [*_sources(step), *_files(step)]
            case changes.Noted(MessageReceived() as message):
                parts = list(map(_shown_part, message.content)) or [_shown_part(message.text)]
                return [{"type": "steering-message", "id": f"message-{message.offset}", "parts": parts}]
            case changes.Below():
                return self._below(change)
            case changes.Ended(end):
                return [*self._ended(end), _end(end)]
        return self._of_call(change)

    def _ended(self, end: RunEnded) -> list[Json]:
        """The event of the end; in a step of its own, where the last step has calls. Pages send the decisions and answers of
        the last step, and would send them to the ended run again and again. (A step without parts changes no page.)
        """
        if self.view.newest_step is None or not self.view.newest_step.calls:
            return [_data(end)]
        return [{"type": "start-step"}, _data(end), {"type": "finish-step"}]

    def _of_call(self, change: changes.Change) -> list[Json]:
        match change:
            case changes.InputOpened(written) | changes.InputExtended(written) | changes.InputVoid(written):
                return self._written(change) if written.is_announced else []
            case changes.CallAnnounced(call, written) if written is None or not written.is_announced:
                return [_input_start(call.id, call.name), _input_delta(call.id, call.raw_arguments)]
            case changes.WaitOpened(call, wait) if wait.asked.kind == "approval":
                return self._approval(WaitingCall(call.id), call.name, wait.asked.arguments, self._token)
            case changes.WaitEnded(call, wait, decided) if wait and call.needed_approval and self._is_whole:
                return self._decision(call, decided)  # otherwise the client has sent it
            case changes.CallRunning(call):
                return self._input(call.id, call.name, call.arguments)
            case changes.CallSettled(call):
                return self._settled(call)
        return []

    def _written(self, change: changes.InputChange) -> list[Json]:
        """A call that the model is writing."""
        match change:
            case changes.InputOpened(call):
                return [_input_start(call.id, call.name)]
            case changes.InputExtended(call, text):
                return [_input_delta(call.id, text)]
            case changes.InputVoid(call) if self._sdk == VERSION_6:
                return [{"type": "tool-output-error", "toolCallId": call.id, "errorText": VOID_CALL}]
        return [RESET]

    @property
    def _text_id(self) -> str:
        return f"text-{self._texts}"

    def _input(self, call_id: str, name: str, arguments: Any) -> list[Json]:
        """The validated arguments of a call, unless the client has the same ones. The page does not run the tool."""
        if call_id in self._inputs and self._inputs[call_id] == arguments:
            return []
        self._inputs[call_id] = arguments
        chunk = {"type": "tool-input-available", "toolCallId": call_id, "toolName": name, "input": arguments}
        return [{**chunk, "providerExecuted": True}]

    def _approval(self, call: WaitingCall, name: str, arguments: Any, token: str, edits: int = 0) -> list[Json]:
        """The request for an approval, unless the client has it. After `edits` it is sent again, with the arguments."""
        if call.id in self._approvals and not edits:
            return []
        self._approvals[call.id] = Wait.id_of(token, call, edits)
        request = {"type": "tool-approval-request", "approvalId": self._approvals[call.id], "toolCallId": call.id}
        return [*self._input(call.id, name, arguments), request]

    def _decision(self, call: CallView, decided: Decided | None) -> list[Json]:
        """A decision that the client does not know."""
        assert decided is not None
        asked = WaitingCall(call.id)
        request = self._approval(asked, call.name, call.arguments, str(decided.offset))
        response: Json = {"type": "tool-approval-response", "approvalId": self._approvals.pop(asked.id)}
        response["approved"] = decided.decision == "approve"
        if decided.reason is not None:
            response["reason"] = decided.reason
        return [*request, response]

    def _below(self, below: changes.Below) -> list[Json]:
        """What is sent for a call of a sub-agent that waits for a person, or has waited: it is a part of the message."""
        run_id, change = below.source.id, below.change
        match change:
            case changes.WaitOpened(call, wait) if wait.asked.kind == "approval":
                return self._approval(WaitingCall(call.id, run_id), call.name, wait.asked.arguments, self._token)
            case changes.CallSettled(call) if call.needed_approval or WaitingCall(call.id, run_id) in self._replied:
                # The client has the input: it has just replied to it, or it was sent above.
                return _output(call, WaitingCall(call.id, run_id).id, is_denied=True)
        return []

    def _settled(self, call: CallView) -> list[Json]:
        is_denied = call.needed_approval
        if call.id in self._inputs or (is_denied and call.error and call.error.kind == DENIED):
            return _output(call, call.id, is_denied=is_denied)
        written = _parsed(call.raw_arguments)
        if call.error is None:
            return [*self._input(call.id, call.name, written), *_output(call, call.id, is_denied=False)]
        text = call.result.text if call.result else ""
        chunk = {"type": "tool-input-error", "toolCallId": call.id, "toolName": call.name, "errorText": text}
        return [{**chunk, "input": written, "providerExecuted": True}]


def _sources(step: StepView) -> list[Json]:
    cited = {each.url: each for each in step.citations if each.url}.values()
    return [
        {"type": "source-url", "sourceId": f"source-{step.number}-{n}", "url": each.url, "title": each.title}
        for n, each in enumerate(cited, 1)
    ]


def _files(step: StepView) -> list[Json]:
    """What the model has made. A part that no page can load is a line of text."""
    sent: list[Json] = []
    for number, part in enumerate(step.files, 1):
        shown, text_id = _shown_part(part), f"file-{step.number}-{number}"
        if shown["type"] == "file":
            sent.append({"type": "file", "mediaType": shown["mediaType"], "url": shown["url"]})
        else:
            text = {"type": "text-delta", "id": text_id, "delta": shown["text"]}
            sent += [{"type": "text-start", "id": text_id}, text, {"type": "text-end", "id": text_id}]
    return sent


def _input_start(call_id: str, name: str) -> Json:
    return {"type": "tool-input-start", "toolCallId": call_id, "toolName": name}


def _input_delta(call_id: str, text: str) -> Json:
    return {"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": text}


def _output(call: CallView, part: str, *, is_denied: bool) -> list[Json]:
    """The result of a call whose input the client has. `is_denied`: whether a denial is a person's decision on it."""
    text = call.result.text if call.result else ""
    if call.error is None:
        return [{"type": "tool-output-available", "toolCallId": part, "output": text}]
    if is_denied and call.error.kind == DENIED:
        return [{"type": "tool-output-denied", "toolCallId": part}]
    return [{"type": "tool-output-error", "toolCallId": part, "errorText": text}]


def _end(end: RunEnded) -> Json:
    if end.status in ABORTED:
        return {"type": "abort", "reason": f"The run was {end.status}."}
    if end.error is not None or end.result is None:
        message = end.error.message if end.error else f"The run ended: {end.status}."
        return {"type": "error", "errorText": message}
    return {"type": "finish", "finishReason": FINISH_REASONS.get(end.status, "other")}


def _as_6(chunk: Json) -> Json:
    """A chunk as version 6 knows it."""
    if chunk["type"] == "steering-message":
        return {"type": "data-steering-message", "id": chunk["id"], "data": {"parts": chunk["parts"]}}
    return {**chunk, "finishReason": "other"} if chunk.get("finishReason") == "interrupted" else chunk


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


AI_SDK = Protocol(prefix=PREFIX, router=router, refuse=_refuse, problem=PROBLEM)
