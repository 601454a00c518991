"""The protocol AG-UI, `/ag-ui/{agent}`: a thread is a conversation, a run of the protocol a turn or the rest of one.

docs/ag-ui.md has a table of what each event becomes. What AG-UI has no event for is a CUSTOM event `mulligan.TYPE`
with our event as its value.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from starlette.responses import JSONResponse

from mulligan.content import described
from mulligan.run_input import RunInput
from mulligan.run_view import changes
from mulligan.run_view.run_view import RunView
from mulligan.run_view.step_view import CallView, StepView
from mulligan.serve.caller import Caller
from mulligan.serve.caller_rights import unread
from mulligan.serve.client_metadata import read_metadata
from mulligan.serve.client_parts import as_prompt, joined_instructions, media_part
from mulligan.serve.http_protocol import STREAM, Calling, EventStream, Protocol, Serving, problem_body, problems
from mulligan.serve.json_body import MOST_MESSAGES, JsonRoute, check_count
from mulligan.serve.problems import Problem
from mulligan.serve.replies import PersonReply, send_replies
from mulligan.serve.runs import Runs
from mulligan.serve.shown_json import shown_json
from mulligan.serve.threads import MESSAGE_ID, Thread, ThreadTurn, UserMessage
from mulligan.serve.turn_stream import VOID_CALL, TurnStream, Wait, open_turn, turn_frames
from mulligan.values import AssistantMessage, Citation, ErrorInfo, Message, ToolMessage
from mulligan.wire.event_types import Event, MessageReceived, RunEnded

PREFIX = "/ag-ui"
OWN_ID = "mulligan-"
"""What the ids of messages begin with that no client has sent."""
MOST_REPLIES = 1_000
SYSTEM = {"system", "developer"}
CANCELLED = {"stopped", "cancelled", "terminated"}
TOLD = {"step_started", "text_delta", "answered", "waiting", "tool_call_started", "tool_call_settled", "message"}
TOLD |= {"run_started", "run_ended", "tool_input_delta"}
"""The events that AG-UI has events of its own for; RUN_STARTED, the call and the interrupt stand for some of them."""

Json = dict[str, Any]
PROBLEM = problem_body("code", "message")
OF_RUN = problems(404, 409, body=PROBLEM)
router = APIRouter(prefix=PREFIX, tags=["ag-ui"], route_class=JsonRoute)


class _FromClient(BaseModel):
    """A part of `RunAgentInput`. Fields that are not read here may be anything."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class ForwardedProps(BaseModel):
    """What is read of `forwardedProps`."""

    model_config = ConfigDict(extra="allow")

    regenerate: Any = None
    """True: the user's message is to have another answer."""
    metadata: Any = None
    """Of the turn: texts. A customer's is `ctx.client_metadata`."""

    @classmethod
    def of(cls, given: Any) -> ForwardedProps:
        """What a client forwards, which may be anything."""
        return cls.model_validate(given if isinstance(given, dict) else {})


class ResumeEntry(_FromClient):
    """The answer to an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunAgentInput(_FromClient):
    """The input of a run. Of `messages` only the user's at the end is read, and what system messages say."""

    model_config = ConfigDict(extra="allow")

    thread_id: str
    run_id: Annotated[str, Field(min_length=1, max_length=1000)]
    messages: Annotated[list[Json], Field(max_length=MOST_MESSAGES, fail_fast=True)] = []
    resume: Annotated[list[ResumeEntry] | None, Field(max_length=MOST_REPLIES)] = None
    forwarded_props: Any = None
    """{`regenerate`: true}: the user's message is to have another answer. {`metadata`: {…}}: texts, of the turn."""


@router.post("/{agent}", response_class=Response, responses={**STREAM, **OF_RUN})
async def run(
    agent: str,
    body: RunAgentInput,
    runs: Serving,
    caller: Calling,
) -> Response:
    """Send the user's message, or the answers to interrupts; or have a message answered again; else return to the thread."""
    thread, props = Thread(runs, caller, agent, body.thread_id), ForwardedProps.of(body.forwarded_props)
    others = body.model_extra or {}
    forwarded = unread(caller, "forwardedProps", (props.model_extra or {}).items(), "forwardedProps.")
    runs.ignore([*unread(caller, "RunAgentInput", others.items()), *forwarded])
    runs.take_place(caller)
    metadata = read_metadata(props.metadata)
    message, said = _last_message(body.messages, metadata), sum(each.get("role") == "user" for each in body.messages)
    others.clear()
    body.messages.clear()  # a client sends the whole conversation: a stream of hours would keep it in memory
    if body.resume:
        return await _answer_interrupts(thread, runs, caller, body)
    if message is not None and str(message.id).startswith(OWN_ID):
        message = await _as_sent(thread, message)
    if message is not None:
        turn = await thread.reply(message, "regenerate" if props.regenerate is True else "say", said=said)
        if turn.is_new:
            stream = await open_turn(runs, caller, turn.run_id, interrupts=True)
            return _respond(body, Translator(body, turn), stream)
    newest = await thread.newest()
    if newest is None:
        return _respond(body, Translator(body, None), None, snapshot=True)
    stream = await open_turn(runs, caller, newest.run_id, since=None, interrupts=True)
    return _respond(body, Translator(body, newest), stream, snapshot=True)


@router.get("/{agent}/{thread:path}", responses=OF_RUN)
async def read(agent: str, thread: str, runs: Serving, caller: Calling) -> Json:
    """The messages of a thread. Of a step that is under way it has nothing yet."""
    newest = await Thread(runs, caller, agent, thread).newest()
    if newest is None:
        return {"messages": []}
    translator = Translator(RunAgentInput(thread_id=thread, run_id=newest.run_id), newest)
    async for event in runs.stored_events(caller, newest.run_id):
        translator.view.add(event)
    return {"messages": translator.snapshot()["messages"]}


async def _answer_interrupts(thread: Thread, runs: Runs, caller: Caller, body: RunAgentInput) -> Response:
    """The rest of the turn after the answers to its interrupts. It begins with the calls whose results it has."""
    newest = await thread.newest()
    if newest is None:
        raise Problem(
            409, "thread_not_found", f"The thread {body.thread_id[:80]!r} has no interrupt: nobody has used it."
        )
    replies = [_reply(each) for each in body.resume or ()]
    since, decided = await send_replies(runs, caller, newest.run_id, replies)
    stream = await open_turn(runs, caller, newest.run_id, since=since, decided=decided, interrupts=True)
    return _respond(body, Translator(body, newest), stream, snapshot=True)


async def _as_sent(thread: Thread, message: UserMessage) -> UserMessage | None:
    """A message with an id of a snapshot, with the id with which it was sent. None: it joined a turn that was open."""
    newest = await thread.newest()
    history = _history(newest.input) if newest else []
    number = next((number for number, each in enumerate(history) if each["id"] == message.id), None)
    if number is None:
        return message  # the client makes ids of this form itself
    turn = await thread.turn_at(number)
    return replace(message, id=turn.input.metadata[MESSAGE_ID]) if turn else None


def _last_message(messages: Sequence[Json], metadata: dict[str, str]) -> UserMessage | None:
    """The user's message at the end; None: the client sends none."""
    last = messages[-1] if messages else {}
    if last.get("role") != "user":
        return None
    content, message_id = last.get("content"), last.get("id")
    instructions = joined_instructions(
        str(each.get("content") or "") for each in messages if each.get("role") in SYSTEM
    )
    if isinstance(content, list):
        check_count("content", content)
        content = as_prompt([_part(part) for part in content])
        if isinstance(content, list) and isinstance(message_id, str | None):
            return UserMessage(message_id, content, instructions, metadata)
    if not isinstance(content, str) or not isinstance(message_id, str | None):
        raise Problem(422, "invalid_input", 'The last message needs an "id" and a "content", which are texts.')
    return UserMessage(message_id, content, instructions, metadata)


def _part(part: Any) -> Json:
    """A part of AG-UI: text, `binary`, or a newer one with a `source`."""
    match part:
        case {"type": "text"}:
            return {"type": "text", "text": str(part.get("text", ""))}
        case {"type": "binary", "mimeType": str(media_type)} if part.get("url") or part.get("data"):
            kind = {"image": "image", "audio": "audio"}.get(media_type.partition("/")[0], "file")
            source = part.get("data") or part.get("url")
            return media_part(kind, source, media_type=media_type, name=part.get("filename"))
        case {"type": "image" | "audio" | "document", "source": {"value": source, **more}}:
            kind = "file" if part["type"] == "document" else part["type"]
            return media_part(kind, source, media_type=more.get("mimeType"))
    kind = shown_json(part.get("type") if isinstance(part, dict) else part)
    raise Problem(422, "invalid_input", f"The user's message has a part {kind}; send text, image, audio or document.")


def _reply(entry: ResumeEntry) -> PersonReply:
    """The answer to an interrupt, as our updates take it. Besides the form of `responseSchema`, simpler ones are read."""
    payload = entry.payload
    if entry.status == "cancelled":
        return PersonReply(wait_id=entry.interrupt_id, approved=False, reason="The person cancelled it.")
    if isinstance(payload, bool):
        return PersonReply(wait_id=entry.interrupt_id, approved=payload, text=json.dumps(payload))
    if not isinstance(payload, dict):
        text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
        return PersonReply(wait_id=entry.interrupt_id, text=text)
    approved, reason, edited = payload.get("approved"), payload.get("reason"), payload.get("editedArgs")
    if edited is not None and not isinstance(edited, dict):
        shown = shown_json(edited)
        raise Problem(
            422, "invalid_input", f'"editedArgs" is {shown}; it must be an object: all arguments of the call.'
        )
    answer = payload.get("answer")
    return PersonReply(
        wait_id=entry.interrupt_id,
        approved=approved if isinstance(approved, bool) else None,
        text=answer if isinstance(answer, str) and len(payload) == 1 else json.dumps(payload, ensure_ascii=False),
        reason=reason if isinstance(reason, str) else None,
        arguments=edited,
    )


def _respond(
    body: RunAgentInput, translator: Translator, stream: TurnStream | None, *, snapshot: bool = False
) -> Response:
    return EventStream(run_frames(body, translator, stream, snapshot=snapshot))


def run_frames(
    body: RunAgentInput, translator: Translator, stream: TurnStream | None, *, snapshot: bool = False
) -> AsyncIterator[bytes]:
    """The run: from RUN_STARTED to RUN_FINISHED or RUN_ERROR."""
    view = translator.view
    for event in stream.earlier if stream else ():
        view.add(event)
    view.leave()
    started = {"type": "RUN_STARTED", "threadId": body.thread_id, "runId": body.run_id}
    known = [translator.snapshot()] if snapshot else []
    end = [translator.ended(view.end)] if stream is None or view.end else []
    return turn_frames([started, *known, *end], stream, translator)


class Translator:
    """The changes of a run as AG-UI's events."""

    def __init__(self, body: RunAgentInput, turn: ThreadTurn | None) -> None:
        self.view = RunView()
        self._body = body
        self._history = _history(turn.input) if turn else []
        """The messages before the run's own."""
        self._answers = sum(message["role"] == "assistant" for message in self._history)
        self._texts: dict[int, int] = {}
        """The numbers of the steps' newest texts, where an earlier one became void."""

    def snapshot(self, before: StepView | None = None) -> Json:
        """The messages so far, or those before a step."""
        messages = list(self._history)
        for entry in self.view.entries:
            if entry is before:
                break
            match entry:
                case StepView(answered=datetime()):
                    calls = list(entry.calls.values())
                    written = [_function(call.id, call.name, call.raw_arguments) for call in calls]
                    messages.append(_assistant(self._answer_id(entry), entry.text, written))
                    if entry.files:
                        messages.append(_assistant(self._files_id(entry), described(entry.files), []))
                    settled = sorted((call for call in calls if call.settled), key=lambda call: call.settled_at)
                    messages += map(_result_of, settled)
                case MessageReceived():
                    content = described(entry.content or entry.text)
                    messages.append({"id": _message_id(entry), "role": "user", "content": content})
        return {"type": "MESSAGES_SNAPSHOT", "messages": messages}

    def translate(self, event: Event, token: str = "") -> list[Json]:  # noqa: ARG002 - interrupts have it
        """What is sent for an event."""
        sent = self._sent(self.view.add(event))
        return sent if event.type in TOLD else [*sent, _custom(event)]

    def paused(self, waits: Sequence[Wait]) -> list[Json]:
        """The end of a run that waits for people."""
        outcome = {"type": "interrupt", "interrupts": [_interrupt(wait) for wait in waits]}
        return [*self._sent(self.view.leave()), self._finished({"outcome": outcome})]

    def ended(self, end: RunEnded | None) -> Json:
        """The end of the stream with the run; None: nobody has said anything yet."""
        if end is None:
            return self._finished({"outcome": {"type": "success"}})
        result = end.result.model_dump(mode="json") if end.result else {"status": end.status}
        if end.status in CANCELLED:
            return self._finished({"outcome": {"type": "cancelled"}, "metadata": {"mulligan": result}})
        if end.error is not None or end.result is None:
            error = end.error or ErrorInfo(kind=end.status, message=f"The run ended: {end.status}.")
            return {"type": "RUN_ERROR", "message": error.message, "code": error.kind}
        return self._finished({"result": result, "outcome": {"type": "success"}})

    def failed(self, problem: Problem) -> Json:
        """The end of a stream that cannot go on."""
        return {"type": "RUN_ERROR", "message": problem.detail, "code": problem.code}

    def _finished(self, fields: Json) -> Json:
        return {"type": "RUN_FINISHED", "threadId": self._body.thread_id, "runId": self._body.run_id, **fields}

    def _answer_id(self, step: StepView) -> str:
        """The id of a step's message. Clients append to a text with a known id: one that is written again has another."""
        number = self._texts.get(step.number)
        return f"{OWN_ID}answer-{self._answers + step.answer_number}" + (f"-{number}" if number else "")

    def _sent(self, changed: Sequence[changes.Change]) -> list[Json]:
        sent = [each for change in changed for each in self._translated(change)]
        # What is void together is taken back by one snapshot: the last, as it may be long.
        snapshots = [each for each in sent if each["type"] == "MESSAGES_SNAPSHOT"][:-1]
        return [each for each in sent if not any(each is snapshot for snapshot in snapshots)]

    def _translated(self, change: changes.Change) -> list[Json]:
        match change:
            case changes.StepOpened(step):
                return [{"type": "STEP_STARTED", "stepName": f"step {step.number}"}]
            case changes.StepClosed(step):
                return [{"type": "STEP_FINISHED", "stepName": f"step {step.number}"}]
            case changes.TextOpened(step, number):
                if number > 1:
                    self._texts[step.number] = number
                return [{"type": "TEXT_MESSAGE_START", "messageId": self._answer_id(step), "role": "assistant"}]
            case changes.TextExtended(step, text):
                return [{"type": "TEXT_MESSAGE_CONTENT", "messageId": self._answer_id(step), "delta": text}]
            case changes.TextClosed(step, is_void=is_void):
                end = {"type": "TEXT_MESSAGE_END", "messageId": self._answer_id(step)}
                return [end, self.snapshot(step)] if is_void else [end]
            case changes.StepAnswered(step):
                return [*self._citations(step), *self._files(step)]
            case changes.Noted(MessageReceived() as message):
                return _whole_text(_message_id(message), described(message.content or message.text), role="user")
            case changes.Ended(end):
                return [self.ended(end)]
        return self._of_call(change)

    def _citations(self, step: StepView) -> list[Json]:
        cited = {"messageId": self._answer_id(step), "citations": [_json(each) for each in step.citations]}
        return [{"type": "CUSTOM", "name": "mulligan.citations", "value": cited}] if step.citations else []

    def _files(self, step: StepView) -> list[Json]:
        """What the model has made: in words, as an answer is text alone here, and the references."""
        if not step.files:
            return []
        made = {"messageId": self._files_id(step), "files": [each.model_dump(mode="json") for each in step.files]}
        told = _whole_text(self._files_id(step), described(step.files), role="assistant")
        return [*told, {"type": "CUSTOM", "name": "mulligan.files", "value": made}]

    def _files_id(self, step: StepView) -> str:
        return f"{self._answer_id(step)}-files"

    def _of_call(self, change: changes.Change) -> list[Json]:
        match change:
            case changes.InputOpened(written) | changes.InputExtended(written) | changes.InputVoid(written):
                return self._written(change, self.view.steps[written.step]) if written.is_announced else []
            case changes.CallAnnounced(call, written) if written is not None and written.is_announced:
                return [_end_of_call(call.id)]
            case changes.CallAnnounced(call):
                return _call(call, self._answer_id(self.view.steps[call.step]))
            case changes.CallSettled(call):
                return _settled(call)
        return []

    def _written(self, change: changes.InputChange, step: StepView) -> list[Json]:
        """A call that the model is writing. One that becomes void has a result that says so, and is taken back."""
        call = change.call
        match change:
            case changes.InputOpened():
                return [_start_of_call(call.id, call.name, self._answer_id(step))]
            case changes.InputExtended():
                return [_arguments(call.id, change.text)]
        result: Json = {"type": "TOOL_CALL_RESULT", "messageId": f"{OWN_ID}void-{call.id}", "toolCallId": call.id}
        return [_end_of_call(call.id), {**result, "content": VOID_CALL, "role": "tool"}, self.snapshot(step)]


def _message_id(message: MessageReceived) -> str:
    return f"{OWN_ID}message-{message.offset}"


def _result_of(call: CallView) -> Json:
    return _result(call.id, call.result.text if call.result else "", call.error)


def _settled(call: CallView) -> list[Json]:
    message = _result_of(call)
    content = {"content": message["content"], "role": "tool"}
    sent: Json = {"type": "TOOL_CALL_RESULT", "messageId": message["id"], "toolCallId": call.id, **content}
    if call.error is None:
        return [sent]
    recovered = {"call_id": call.id, "name": call.name, "error": call.error.model_dump()}
    return [sent, {"type": "CUSTOM", "name": "mulligan.recovered_failure", "value": recovered}]


def _json(citation: Citation) -> Json:
    return citation.model_dump(mode="json")


def _custom(event: Event) -> Json:
    return {"type": "CUSTOM", "name": f"mulligan.{event.type}", "value": event.model_dump(mode="json")}


def _whole_text(message_id: str, text: str, role: str) -> list[Json]:
    return [
        {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": role},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": text},
        {"type": "TEXT_MESSAGE_END", "messageId": message_id},
    ]


def _call(call: CallView, message_id: str) -> list[Json]:
    arguments = [_arguments(call.id, call.raw_arguments)] if call.raw_arguments else []
    return [_start_of_call(call.id, call.name, message_id), *arguments, _end_of_call(call.id)]


def _start_of_call(call_id: str, name: str, message_id: str) -> Json:
    return {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name, "parentMessageId": message_id}


def _arguments(call_id: str, delta: str) -> Json:
    return {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta}


def _end_of_call(call_id: str) -> Json:
    return {"type": "TOOL_CALL_END", "toolCallId": call_id}


def _interrupt(wait: Wait) -> Json:
    """A wait as an interrupt, with the schema of the answer to it."""
    fields = wait.fields
    interrupt: Json = {"id": wait.id, "message": fields["text"], "toolCallId": wait.own_call_id}
    if fields["kind"] == "approval":
        properties: Json = {
            "approved": {"type": "boolean"},
            "reason": {"type": "string"},
            "editedArgs": {"type": "object", "description": "All arguments of the call, in place of its own."},
        }
        interrupt["reason"] = "tool_call"
        interrupt["responseSchema"] = {"type": "object", "properties": properties, "required": ["approved"]}
    else:
        text = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
        interrupt["reason"] = "input_required"
        interrupt["responseSchema"] = fields.get("answer_schema") or text
    if fields.get("until"):
        interrupt["expiresAt"] = fields["until"]
    shown = {name: fields[name] for name in ("tool", "arguments", "since", "url") if fields.get(name) is not None}
    if wait.call.sub_run:
        shown |= {"run_id": wait.call.sub_run, "call_id": wait.call.call_id}
    return {**interrupt, "metadata": {"mulligan": shown}}


def _history(run_input: RunInput) -> list[Json]:
    """The messages with which a turn begins, in AG-UI's form."""
    messages: list[Json] = []
    answers = 0
    for index, message in enumerate(run_input.messages):
        answers += isinstance(message, AssistantMessage)
        messages.append(_message(message, f"{OWN_ID}user-{index}", f"{OWN_ID}answer-{answers}"))
    if run_input.prompt is not None:
        message_id = run_input.metadata.get(MESSAGE_ID) or f"{OWN_ID}user-{len(messages)}"
        messages.append({"id": message_id, "role": "user", "content": described(run_input.prompt)})
    return messages


def _message(message: Message, user_id: str, answer_id: str) -> Json:
    if isinstance(message, AssistantMessage):
        written = [_function(call.id, call.name, call.arguments) for call in message.tool_calls]
        return _assistant(answer_id, message.text, written)
    if isinstance(message, ToolMessage):
        return _result(message.call_id, message.text, message.error)
    return {"id": user_id, "role": "user", "content": described(message.content or message.text)}


def _assistant(message_id: str, text: str, calls: list[Json]) -> Json:
    content = {"content": text} if text else {}
    return {"id": message_id, "role": "assistant", **content, **({"toolCalls": calls} if calls else {})}


def _function(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(call_id: str, text: str, error: ErrorInfo | None) -> Json:
    message = {"id": f"{OWN_ID}result-{call_id}", "role": "tool", "toolCallId": call_id, "content": text}
    return {**message, "error": error.message} if error else message


def _refuse(problem: Problem) -> Response:
    """A problem before the stream, with the fields of RUN_ERROR."""
    return JSONResponse({"code": problem.code, "message": problem.detail}, problem.status, headers=problem.headers)


AG_UI = Protocol(prefix=PREFIX, router=router, refuse=_refuse, problem=PROBLEM)
