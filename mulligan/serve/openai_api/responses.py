"""`/v1/responses`: a response is a run, by the same id. It goes on when its client has gone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import JSONResponse
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError

from mulligan.client.origins.chained_run import ChainedRun, request_digest
from mulligan.client.read_run import NO_WORKER_STATUSES
from mulligan.client.send_update import RunEndedError
from mulligan.client.start_run import read_input
from mulligan.errors import UpdateRefusedError
from mulligan.serve.caller import Caller
from mulligan.serve.client_metadata import run_metadata, shown_metadata
from mulligan.serve.http_protocol import Calling, EventStream, Serving
from mulligan.serve.idempotency import RETRY_SECONDS, StartRequest, key_reused, read_update_id
from mulligan.serve.ignored_fields import IgnoredFields
from mulligan.serve.json_body import parse_body
from mulligan.serve.openai_api.conversations import conversation_of, newest_run
from mulligan.serve.openai_api.input_items import (
    InputReply,
    input_messages,
    joined_prompt,
    replies,
    run_input_json,
    split_instructions,
)
from mulligan.serve.openai_api.item_ids import split_new_items
from mulligan.serve.openai_api.request_fields import (
    RESPONSE_FIELDS,
    RESPONSE_REFUSED,
    flag,
    invalid,
    json_object,
    read_conversation,
    read_ignored,
    read_metadata,
    read_model,
    read_text,
)
from mulligan.serve.openai_api.response_events import ResponseEvents, ResponseHead
from mulligan.serve.openai_api.response_form import Form, ResponseForm
from mulligan.serve.openai_api.response_stream import (
    broken_frames,
    response_frames,
    response_turn_frames,
    stored_as_openais,
)
from mulligan.serve.openai_api.sequence import MOST_NUMBER
from mulligan.serve.openai_api.side_requests import NOBODY, ServedBy, side_requests_of
from mulligan.serve.pauses import with_pauses
from mulligan.serve.problems import Problem
from mulligan.serve.runs import NOTHING_IGNORED, Runs
from mulligan.serve.turn_stream import WaitingCall, open_turn
from mulligan.wire.parse_update import parse_update
from mulligan.wire.updates import Answer, Decide

ID_PREFIX = "resp_"
WAIT_SECONDS = 540
"""How long a request that does not stream waits for the end of its run; then the response is `in_progress`. OpenAI's SDKs
wait for 600 s."""
CANCEL_SECONDS = 10
MOST_TURNS_BACK = 20
"""Turns of a conversation among which one with the key of a request is looked for, the newest first."""
READ_SECONDS = 5
"""How long a worker of an open run may take to return its events. Then the response has what is known."""
SECONDS_BETWEEN_CHECKS = 1.0
"""How soon it is noticed that the client of a waiting request has gone."""

T = TypeVar("T")
_log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/responses", include_in_schema=False)


@dataclass(frozen=True, kw_only=True)
class _Create:
    """A request for a response: with `replied` it answers waiting calls of `previous`, with `prompt` it continues that run,
    and with `run_input`, as JSON, it starts one.
    """

    streams: bool
    is_background: bool
    metadata: dict[str, str]
    model: Any
    previous: str | None
    conversation: str = ""
    replied: Sequence[InputReply] = ()
    prompt: Any = None
    run_input: bytes = b""
    served_by: ServedBy = NOBODY
    instructions: str = ""
    ignored: IgnoredFields = NOTHING_IGNORED
    start: StartRequest

    @classmethod
    def read(cls, request: Request, caller: Caller, given: Any) -> _Create:
        """What is invalid is refused before anything is done."""
        body = json_object(given)
        ignored = read_ignored(body, RESPONSE_FIELDS, RESPONSE_REFUSED)
        new = split_new_items(body.get("input"))
        items = new.items
        previous, conversation = read_text(body, "previous_response_id"), read_conversation(body)
        if previous and conversation:
            raise invalid("conversation", "cannot be given together with previous_response_id; leave one of them out.")
        replied = replies(items, of_any_run=not previous)
        if not (previous or conversation or replied):
            previous, conversation = new.run, new.conversation
        asked = cls(
            streams=flag(body, "stream"),
            is_background=flag(body, "background"),
            metadata=read_metadata(body),
            model=body.get("model"),
            previous=previous or None,
            conversation=conversation,
            replied=replied,
            ignored=ignored,
            start=StartRequest.read(request, caller, ID_PREFIX, body),
        )
        if asked.replied:
            return asked
        is_continued = previous or conversation
        given = items if is_continued else body.get("input")
        instructions, messages = split_instructions(input_messages(given), read_text(body, "instructions"))
        if not is_continued:
            served_by = side_requests_of(request).served_by(request.headers, read_model(body), instructions, messages)
            run_input = run_input_json(served_by.input_fields, messages, instructions, asked.metadata, "input")
            return replace(asked, run_input=run_input, served_by=served_by)
        if any(message["role"] != "user" for message in messages):
            raise invalid(
                "input", "may only have user messages where it continues a conversation: the run has the earlier ones."
            )
        return replace(asked, prompt=joined_prompt(messages), instructions=instructions)


@router.post("")
async def create(request: Request, runs: Serving, caller: Calling, form: Form) -> Response:
    """Start a run, continue the conversation of one that has ended, or reply to the waiting calls of one."""
    asked = await parse_body(request, partial(_Create.read, request, caller))
    streams, is_background, previous, replied = asked.streams, asked.is_background, asked.previous, asked.replied
    if streams or not is_background:
        runs.take_place(caller)
    read: ResponseEvents | None = None
    if replied:
        run_id = previous or await _run_of_replies(runs, caller, replied)
        if not (asked.start.is_retry or asked.start.keyed_id):  # a request that may be a repeated one gets all
            read = await _read_before_reply(runs, caller, run_id, form)
        await _reply(request, runs, caller, run_id, asked)
    elif previous:
        run_id = await _branch_off(runs, caller, previous, asked)
    elif asked.conversation:
        run_id = await _take_turn(runs, caller, asked)
    else:
        model_only = await asked.served_by.check(runs, caller)
        start, ignored = asked.start, asked.ignored
        run_id = (await runs.start(caller, asked.run_input, request=start, ignored=ignored, model_only=model_only)).id
    try:
        decided = [_within(run_id, reply.call) for reply in replied]
        if streams:
            events = read or ResponseEvents(await _head(runs, caller, run_id), form)
            replied_to = decided if read else []
            frames = await response_turn_frames(runs, caller, run_id, events, replied_to)
            stop = None if is_background else runs.stop_on_disconnect(caller, run_id)
            return EventStream(frames, on_disconnect=stop)
        events = ResponseEvents(await _head(runs, caller, run_id), form)
        if is_background and not replied:
            return JSONResponse(events.to_json())
        if not is_background:
            await _wait(request, runs, caller, run_id, decided)
            if (stop := runs.stop_on_disconnect(caller, run_id)) and await request.is_disconnected():
                stop()
        if read is not None:
            events.leave_out(read.finished_items())
        return JSONResponse(await _read(runs, caller, run_id, events))
    except Exception as error:  # noqa: BLE001 - whatever it is: SDKs would send a request again that has done its work
        _log.error("POST /v1/responses: the response %s cannot be read now", run_id, exc_info=error)
        before = previous if previous != run_id else None
        conversation = conversation_of(run_id)
        head = ResponseHead(run_id, str(asked.model or ""), time.time(), asked.metadata, before, conversation)
        return _unread(ResponseEvents(head, form), error, streams=streams)


def _unread(events: ResponseEvents, error: Exception, *, streams: bool) -> Response:
    """The response of a run that cannot be read now: what the request says of it. It can be retrieved later."""
    if not streams:
        return JSONResponse(events.to_json())
    return EventStream(broken_frames(events, error))


@router.post("/{response_id:path}/cancel")
async def cancel(response_id: str, runs: Serving, caller: Calling, form: Form) -> Response:
    """Cancel the run of a response. One that has ended stays as it is."""
    try:
        await runs.cancel(caller, response_id)
        await runs.read(caller, response_id, wait=CANCEL_SECONDS)
    except RunEndedError:
        pass
    events = ResponseEvents(await _head(runs, caller, response_id), form)
    return JSONResponse(await _read(runs, caller, response_id, events))


@router.post("/{path:path}")
async def not_served(path: str) -> Response:
    """OpenAI's other ways to work on a response, such as `compact` and `input_tokens`: what there is in their place."""
    raise Problem(
        404, "path_not_found", f"There is no POST /v1/responses/{path[:100]}. POST /v1/responses starts a run, and with "
        "previous_response_id it continues one; …/{id}/cancel cancels it. Agents compact their conversations by themselves: "
        "docs/compaction.md.",
    )  # fmt: skip


@router.get("/{response_id:path}")
async def retrieve(
    response_id: str,
    runs: Serving,
    caller: Calling,
    form: Form,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, le=MOST_NUMBER)] = None,
) -> Response:
    """A response; or its events, from the first one or after the one with the number `starting_after`."""
    events = ResponseEvents(await _head(runs, caller, response_id), form)
    if not stream:
        return JSONResponse(await _read(runs, caller, response_id, events))
    return EventStream(await response_frames(runs, caller, response_id, events, starting_after))


async def _take_turn(runs: Runs, caller: Caller, asked: _Create) -> str:
    """Continue a conversation at its end, unless the request repeats a turn: by its key, or by an SDK's retry count.

    Two equal prompts of a person are two turns.
    """
    newest, key = await newest_run(runs, caller, asked.conversation), asked.start.keyed_id
    if key is not None and await ChainedRun.read(runs.client, key) is not None:
        raise key_reused(key)
    tries = MOST_TURNS_BACK if key else int(asked.start.is_retry and await _may_be_repeated(runs, caller, newest))
    async for run, before in _turns_back(runs, newest, tries):
        if key is None or run.key == key:
            with suppress(_MovedOn):
                return await _continue(runs, caller, before, asked, is_turn=True)
    return await _continue(runs, caller, newest.description.id, asked, is_turn=True)


async def _branch_off(runs: Runs, caller: Caller, previous: str, asked: _Create) -> str:
    """Continue the conversation of a response, unless the key of the request has started a turn of that conversation."""
    if (key := asked.start.keyed_id) is not None:
        newest = await newest_run(runs, caller, previous)
        async for run, _ in _turns_back(runs, newest, MOST_TURNS_BACK):
            if run.key == key and run.description.id != key:
                raise key_reused(run.description.id)
    return await _continue(runs, caller, previous, asked)


async def _turns_back(runs: Runs, newest: ChainedRun, most: int) -> AsyncIterator[tuple[ChainedRun, str]]:
    """The newest turns of a conversation that continue another one, back from a run, each with the id of that run."""
    run: ChainedRun | None = newest
    conversation = conversation_of(newest.description.id)
    for _ in range(most):
        before = run.continued if run else None
        if run is None or before is None or conversation_of(before.workflow_id) != conversation:
            return
        yield run, before.workflow_id
        run = await ChainedRun.read(runs.client, before.workflow_id, before.run_id)  # None: its retention is over


async def _may_be_repeated(runs: Runs, caller: Caller, newest: ChainedRun) -> bool:
    """Whether an SDK may send the request of a turn again: the turn is recent, and was the same user's."""
    given = await read_input(runs.client, newest.description.id)
    is_recent = newest.description.start_time.timestamp() > time.time() - RETRY_SECONDS
    return is_recent and given is not None and caller.other_user in (None, given.user)


class _MovedOn(Problem):
    """Somebody else has continued the conversation."""

    def __init__(self) -> None:
        super().__init__(
            400, "conversation_continued", "The conversation was continued meanwhile: read its items, and send again."
        )


async def _continue(runs: Runs, caller: Caller, previous: str, asked: _Create, *, is_turn: bool = False) -> str:
    """Continue the conversation of a run that has ended, in a new one: the first input goes on with the conversation, each
    other one, and each key, is a branch. `is_turn`: there are no branches.
    """
    described = await runs.describe(caller, previous)
    before = await read_input(runs.client, previous)
    if before is None:
        raise invalid("previous_response_id", f"is {previous[:80]!r}, which is not a run of an agent.")
    if asked.model not in (None, "", before.agent):
        raise invalid(
            "model", f"is {str(asked.model)[:80]!r}; it must be {before.agent!r}, the agent of the previous response."
        )
    if described.status == WorkflowExecutionStatus.RUNNING:
        raise invalid(
            "previous_response_id",
            "is a response in progress; wait for its end, cancel it, or reply to its waiting calls alone.",
        )
    options: dict[str, Any] = {"prompt": asked.prompt, **run_metadata(caller, asked.metadata)}
    if asked.instructions:
        options["client_instructions"] = asked.instructions
    key = asked.start.keyed_id
    if is_turn or key is None:
        try:
            return (await runs.resume(caller, previous, options, key=key, ignored=asked.ignored)).id
        except Problem as problem:
            if problem.code != "already_resumed":
                raise
            if is_turn:
                raise _MovedOn from None
    server_id = key or _branch_id(described, options)
    return (await runs.resume(caller, previous, options, server_id=server_id, key=key, ignored=asked.ignored)).id


def _branch_id(previous: WorkflowExecutionDescription, options: Mapping[str, Any]) -> str:
    """The id of the response that continues another one with this input: the same one for the same request."""
    named = json.dumps([previous.id, previous.run_id, request_digest(options)])
    return f"{ID_PREFIX}{hashlib.sha256(named.encode()).hexdigest()[:32]}"


async def _reply(request: Request, runs: Runs, caller: Caller, run_id: str, asked: _Create) -> None:
    """Send the replies to their runs. Of a request that an SDK sends again, the run may have them already."""
    for reply in asked.replied:
        call_id, owner = reply.call.call_id, reply.call.sub_run or run_id
        if not f"{owner}/".startswith(f"{run_id}/"):
            raise invalid("input", f"has a reply to {reply.call.id[:80]!r}, which is no call of this response.")
        fields: dict[str, Any] = {"call_id": call_id, "text": reply.text}
        if reply.approve is not None:
            decision = "approve" if reply.approve else "deny"
            # `edits`: the request for it has shown the model's arguments.
            fields = {"call_id": call_id, "decision": decision, "reason": reply.text or None, "edits": 0}
        update_id = read_update_id(request, caller, fields)
        try:
            if reply.approve is None:
                await runs.answer(caller, owner, parse_update(Answer, fields), update_id)
            else:
                await runs.decide(caller, owner, parse_update(Decide, fields), update_id)
        except (UpdateRefusedError, RunEndedError) as error:
            if not asked.start.is_retry or (isinstance(error, UpdateRefusedError) and error.ended_by is None):
                raise


async def _run_of_replies(runs: Runs, caller: Caller, given: Sequence[InputReply]) -> str:
    """The run of the response that replies belong to: the one at the top, if a sub-agent has asked."""
    described = await runs.describe(caller, given[0].call.sub_run)
    return described.root_id or described.id


async def _read_before_reply(runs: Runs, caller: Caller, run_id: str, form: ResponseForm) -> ResponseEvents:
    """The response as its client has it when it replies: what it gets then is the rest."""
    events = ResponseEvents(await _head(runs, caller, run_id), form)
    async for _ in stored_as_openais(runs, caller, run_id, events):
        continue
    return events


def _within(run_id: str, call: WaitingCall) -> WaitingCall:
    """A call as the events of a run name it."""
    return WaitingCall(call.call_id, "" if call.sub_run == run_id else call.sub_run)


async def _head(runs: Runs, caller: Caller, run_id: str) -> ResponseHead:
    described = await runs.describe(caller, run_id)
    given = await read_input(runs.client, run_id)
    if given is None:
        raise Problem(404, "run_not_found", f"There is no response {run_id[:200]!r}: it is not a run of an agent.")
    origin = given.carried.origin
    previous = origin.workflow_id if origin is not None and origin.kind == "resume" else None
    is_own = given.carried.instructions_by_customer or not caller.is_customer
    return ResponseHead(
        run_id,
        given.agent,
        described.start_time.timestamp(),
        shown_metadata(caller, given),
        previous,
        conversation_of(run_id),
        given.client_instructions if is_own else None,
    )


async def _read(runs: Runs, caller: Caller, run_id: str, events: ResponseEvents) -> dict[str, Any]:
    """The Response of a run, by its stored events."""
    described = await runs.describe(caller, run_id)
    is_open = described.status == WorkflowExecutionStatus.RUNNING
    try:
        async with asyncio.timeout(READ_SECONDS if is_open else None):
            async for _ in stored_as_openais(runs, caller, run_id, events):
                continue
            if is_open:
                list(events.ask_below(await runs.pending(caller, run_id)))
    except (TimeoutError, RPCError) as error:
        if not is_open or (isinstance(error, RPCError) and error.status not in NO_WORKER_STATUSES):
            raise
        # No worker answers, so nobody knows the items: the run has been accepted, and a client that polls goes on.
    return events.to_json()


async def _wait(
    request: Request, runs: Runs, caller: Caller, run_id: str, decided: Collection[WaitingCall] = ()
) -> None:
    """Wait until a run has ended, or it and those below it wait for people only; or its client has gone."""
    # Without a worker, a new run has no events yet; one that was replied to has.
    turn = await open_turn(runs, caller, run_id, since=None if decided else "", decided=decided)
    async for _ in follow_while_connected(request, turn.live()):
        continue


async def follow_while_connected(request: Request, watched: AsyncIterator[T] | None) -> AsyncIterator[T]:
    """The events of a run or a turn, while the client of a request without a stream is there and may be expected to wait."""
    if watched is None:
        return
    loop = asyncio.get_running_loop()
    until = loop.time() + WAIT_SECONDS
    async with aclosing(with_pauses(watched, lambda: SECONDS_BETWEEN_CHECKS)) as events:
        async for each in events:
            if loop.time() >= until or (each is None and await request.is_disconnected()):
                return
            if each is not None:
                yield each
