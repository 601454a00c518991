"""Conversations over several requests, for protocols whose clients name a conversation and not a run.

Each turn of a conversation is a run. The first turn's id is made from the tenant, the agent and the conversation's id; the
next turn resumes the run of the one before, so its id follows from that. No server keeps anything, and Temporal starts a
turn once, however many requests ask for it. The history that a client sends is not read: the run has it.

Everybody can compute these ids. So a run with such an id is a turn only if it is of the caller's tenant and names the
conversation; where another run has the id, the conversation goes on under the next one.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.resumed_run import MOST_TAKEN_IDS, ResumedRun, newest_continuation
from mulligan.client.start_run import StartUnknownError, read_input
from mulligan.content import Part, shown_content
from mulligan.run_input import RunInput
from mulligan.serve.caller import Caller
from mulligan.serve.idempotency import start_unknown
from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs, Started
from mulligan.serve.served_request import IGNORED

THREAD_ID, MESSAGE_ID = "thread_id", "message_id"
"""Keys in the metadata of a turn's run: the conversation's id, and that of the user's message, as the client names them."""
MOST_ID_CHARS = 500
MOST_TRIES = 3
"""How often a turn is looked for again when another request has started one at the same time."""
LISTED = 20
"""Runs of a conversation, the newest first, that are read from Temporal's visibility."""


@dataclass(frozen=True)
class UserMessage:
    """What a user says. `id`: the client's; None: the client has none, so each request is a new message."""

    id: str | None
    prompt: str | list[Part]
    instructions: str = ""
    """The client's, for this turn and those after it; "": it has none."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Likewise."""


@dataclass(frozen=True)
class ThreadTurn:
    """A turn: its run, the input of that, and whether it is open."""

    run_id: str
    input: RunInput
    is_open: bool

    def answers(self, message: UserMessage) -> bool:
        """Whether the turn is the reply to a message.

        Raises:
            Problem: the message has the id of the turn's, and another text.
        """
        if message.id is None or message.id != self.input.metadata.get(MESSAGE_ID):
            return False
        if _comparable(message.prompt) != _comparable(self.input.prompt):
            raise Problem(
                409, "message_changed", f"The message {message.id[:80]!r} was sent before, with another text. "
                "A conversation cannot be changed; send a message with a new id.",
            )  # fmt: skip
        return True


def _comparable(prompt: str | list[Part] | None) -> Any:
    """A prompt without the difference between bytes and a reference to them."""
    return shown_content(prompt) if isinstance(prompt, list) else prompt


class Thread:
    """A conversation of a caller with an agent."""

    def __init__(self, runs: Runs, caller: Caller, agent: str, thread_id: str) -> None:
        """`thread_id`: the client's.

        Raises:
            Problem: it is no valid id.
        """
        if not thread_id.strip() or len(thread_id) > MOST_ID_CHARS:
            raise Problem(
                422, "invalid_input", f"The conversation's id is {thread_id[:80]!r}; "
                f"it must be 1 to {MOST_ID_CHARS} characters.",
            )  # fmt: skip
        if len(agent) > MOST_ID_CHARS:
            raise Problem(404, "unknown_agent", f"There is no agent {agent[:80]!r}.")
        self._runs, self._caller, self._agent, self._id = runs, caller, agent, thread_id
        named = json.dumps([caller.tenant, agent, thread_id])
        digest = hashlib.sha256(named.encode()).hexdigest()[:32]
        self._first = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', agent)[:60]}-thread-{digest}"

    async def newest(self) -> ThreadTurn | None:
        """The newest turn; None: nobody has said anything yet."""
        run = await self._listed() or (await self._first_turn())[1]
        if run is None:
            return None
        # Visibility is a little late, so later turns may have been started.
        run = await newest_continuation(self._runs.client, run)
        return await self._turn(run.description.id)

    async def turns(self) -> AsyncIterator[ThreadTurn]:
        """The turns, the newest first, as far back as Temporal keeps them."""
        turn = await self.newest()
        while turn is not None:
            yield turn
            turn = await self._turn_before(turn)

    async def _turn_before(self, turn: ThreadTurn) -> ThreadTurn | None:
        run = await ResumedRun.read(self._runs.client, turn.run_id)
        if run is None or run.resumed_from is None:
            return None
        source = run.resumed_from.workflow_id, run.resumed_from.run_id
        before = await ResumedRun.read(self._runs.client, source[0])
        if before is None or before.source != source or not await self._is_turn(before):
            return None
        return await self._turn(source[0])

    async def reply(self, message: UserMessage) -> ThreadTurn:
        """The turn that replies to a message. It is started, unless an earlier request has done so.

        Raises:
            Problem: the turn before has not ended; or two messages were sent at the same time, and this is the other one.
        """
        if message.id is not None and (not message.id or len(message.id) > MOST_ID_CHARS):
            raise Problem(422, "invalid_input", f"A message's id must be 1 to {MOST_ID_CHARS} characters.")
        if not message.prompt or (isinstance(message.prompt, str) and not message.prompt.strip()):
            raise Problem(422, "invalid_input", "The user's message has no text.")
        is_recognized = message.id is not None
        message = message if is_recognized else replace(message, id=secrets.token_hex(16))
        for _ in range(MOST_TRIES):
            newest = await self.newest()
            if newest is not None and newest.answers(message):
                return newest
            if newest is not None and newest.is_open:
                raise Problem(
                    409, "busy", "The agent has not finished its reply to an earlier message. Wait for its end, decide "
                    f"what it waits for, or stop it: POST /api/runs/{newest.run_id}/stop.",
                )  # fmt: skip
            try:
                run_id = await self._start(newest, message)
            except StartUnknownError as error:
                if is_recognized:
                    raise
                return await self._turn_after_all(message, error.workflow_id)
            if run_id is not None:
                return await self._turn(run_id)
        raise Problem(
            409, "busy", "Another message of this conversation was sent at the same time. Send this one again."
        )

    async def _turn_after_all(self, message: UserMessage, run_id: str) -> ThreadTurn:
        """The turn of a message, if Temporal has started it without an answer.

        Raises:
            Problem: it is not known whether it was started.
        """
        with suppress(RPCError):
            newest = await self.newest()
            if newest is not None and newest.answers(message):
                Started.noted(newest.run_id, is_new=True)
                return newest
        raise start_unknown(run_id, "a message with an id")

    async def _start(self, before: ThreadTurn | None, message: UserMessage) -> str | None:
        """Start the turn after `before`, and return its id; None: there is a run with another message by now."""
        metadata = {**message.metadata, THREAD_ID: self._id, MESSAGE_ID: message.id or ""}
        instructions = message.instructions or None
        try:
            if before is not None:
                kept = {name: value for name, value in before.input.metadata.items() if name != IGNORED}
                options = {
                    "prompt": message.prompt,
                    "metadata": {**kept, **metadata},
                    **({"client_instructions": instructions} if instructions else {}),
                }
                return (await self._runs.resume(self._caller, before.run_id, options)).id
            run_input = RunInput(
                agent=self._agent, prompt=message.prompt, metadata=metadata, client_instructions=instructions
            )
            free, _ = await self._first_turn()
            return (await self._runs.start(self._caller, run_input, server_id=free)).id
        except Problem as problem:
            if problem.code not in ("already_resumed", "id_taken"):
                raise
            return None

    async def _turn(self, run_id: str) -> ThreadTurn:
        described = await self._runs.describe(self._caller, run_id)
        run_input = await read_input(self._runs.client, run_id)
        if run_input is None:
            raise Problem(409, "not_an_agent", f"The workflow {run_id!r} is not a run of an agent.")
        return ThreadTurn(run_id, run_input, described.status == WorkflowExecutionStatus.RUNNING)

    async def _first_turn(self) -> tuple[str, ResumedRun | None]:
        """The id of the first turn, and its run; None: there is none yet."""
        for number in range(1, MOST_TAKEN_IDS + 1):
            run_id = self._first if number == 1 else f"{self._first}-{number}"
            run = await ResumedRun.read(self._runs.client, run_id)
            if run is None or await self._is_turn(run):
                return run_id, run
        raise Problem(
            409, "id_taken", f"Other runs have the ids of the conversation {self._id[:80]!r}; name another one."
        )

    async def _is_turn(self, run: ResumedRun) -> bool:
        """Whether a run with an id of this conversation is of the caller's tenant, and of this conversation."""
        if run.tenant != self._caller.tenant or not self._caller.may_use(self._agent):
            return False
        run_input = await read_input(self._runs.client, run.description.id)
        return run_input is not None and run_input.metadata.get(THREAD_ID) == self._id

    async def _listed(self) -> ResumedRun | None:
        """The newest turn that Temporal's visibility knows."""
        pattern = re.compile(rf"{re.escape(self._first)}(?:-(\d+))?(?:-resumed(?:-(\d+))?)?")
        query = f'WorkflowId STARTS_WITH "{self._first}" AND ParentWorkflowId IS NULL'
        pages = self._runs.client.list_workflows(query, page_size=LISTED)
        try:
            await pages.fetch_next_page()
        except RPCError as error:
            if error.status != RPCStatusCode.INVALID_ARGUMENT:
                raise
            return None  # an old server, which cannot search for ids
        ids = {each.id for each in pages.current_page or () if pattern.fullmatch(each.id)}
        for run_id in sorted(ids, key=lambda each: (len(each), each), reverse=True):
            run = await ResumedRun.read(self._runs.client, run_id)
            if run is not None and await self._is_turn(run):
                return run
        return None
