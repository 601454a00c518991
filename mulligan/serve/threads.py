"""Conversations over several requests, for protocols whose clients name a conversation and not a run.

Each turn of a conversation is a run. The first turn's id is made from the tenant, the user, the agent and the conversation's
id; the next turn resumes the run of the one before, so its id follows from that. No server keeps anything, and Temporal
starts a turn once, however many requests ask for it. The history that a client sends is not read: the run has it.

A message that is answered again begins a branch: its first turn begins as the run did that answered the message before, and
has the next id of the form `…-branch-N`. The newest branch is the conversation; the turns before it are those of its runs.

Everybody can compute these ids. So a run with such an id is a turn only if it is of the caller's tenant and user and names
the conversation; where another run has the id, the conversation goes on under the next one.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.origins.chained_run import MOST_TAKEN_IDS, ChainedRun, newest_continuation
from mulligan.client.start_run import StartUnknownError, read_input
from mulligan.content import Part, described, shown_content
from mulligan.run_input import RunInput
from mulligan.serve.caller import Caller
from mulligan.serve.client_metadata import run_metadata, shown_metadata
from mulligan.serve.idempotency import start_unknown
from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs, Started
from mulligan.serve.served_request import IGNORED

THREAD_ID, MESSAGE_ID = "thread_id", "message_id"
"""Keys in the metadata of a turn's run: the conversation's id, and that of the user's message, as the client names them."""
MOST_ID_CHARS = 500
MOST_TURNS_BACK = 100
"""The newest turns, among which the one is looked for that has answered a message."""
MOST_TRIES = 3
"""How often a turn is looked for again when another request has started one at the same time."""
LISTED = 20
"""Runs of a conversation, the newest first, that are read from Temporal's visibility."""
Intent = Literal["say", "edit", "regenerate"]
"""What a client does with a message: it says it, unless it has said it before; it puts it in the place of an earlier message
with the same id; or it wants another answer to it."""


@dataclass(frozen=True)
class UserMessage:
    """What a user says. `id`: the client's; None: the client has none, so each request is a new message."""

    id: str | None
    prompt: str | list[Part]
    instructions: str = ""
    """The client's, for this turn and those after it; "": it has none."""
    metadata: dict[str, str] = field(default_factory=dict)
    """The client's, for this turn alone."""

    def check(self) -> None:
        """Check that there is something to answer.

        Raises:
            Problem: the message has no text, or no valid id.
        """
        if self.id is not None and (not self.id or len(self.id) > MOST_ID_CHARS):
            told = f"A message's id has {len(self.id):,} characters; it must be 1 to {MOST_ID_CHARS}."
            raise Problem(422, "invalid_input", told)
        if not self.prompt or (isinstance(self.prompt, str) and not self.prompt.strip()):
            raise Problem(422, "invalid_input", "The user's message has no text.")


@dataclass(frozen=True)
class ThreadTurn:
    """A turn: its run, the input of that, and whether it is open."""

    run_id: str
    input: RunInput
    is_open: bool
    is_new: bool = False
    """Whether this request has started it."""

    @property
    def said(self) -> int:
        """How many messages of the user the turn has begun with."""
        return sum(each.role == "user" for each in self.input.new_messages)

    def replies_to(self, message: UserMessage) -> bool:
        """Whether the turn replies to the message with this id, whatever its text was."""
        return message.id is not None and message.id == self.input.metadata.get(MESSAGE_ID)

    def answers(self, message: UserMessage) -> bool:
        """Whether the turn is the reply to a message, as it was sent or as clients are shown it."""
        sent, given = self.input.prompt, message.prompt
        is_shown = isinstance(given, str) and given.split() == described(sent).split()
        return self.replies_to(message) and (is_shown or _comparable(given) == _comparable(sent))


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
            raise Problem(
                404, "agent_not_found", f"There is no agent {agent[:80]!r}; GET /api/agents lists the agents."
            )
        self._runs, self._caller, self._agent, self._id = runs, caller, agent, thread_id
        named = json.dumps([caller.tenant, caller.user, agent, thread_id])
        digest = hashlib.sha256(named.encode()).hexdigest()[:32]
        self._first = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', agent)[:60]}-thread-{digest}"

    def own_metadata(self, turn: ThreadTurn) -> dict[str, str]:
        """The metadata that the client has sent for a turn."""
        shown = shown_metadata(self._caller, turn.input)
        return {name: value for name, value in shown.items() if name not in (THREAD_ID, MESSAGE_ID, IGNORED)}

    async def newest(self) -> ThreadTurn | None:
        """The newest turn; None: nobody has said anything yet."""
        return (await self._newest())[1]

    async def _newest(self) -> tuple[str, ThreadTurn | None]:
        """The id that the next branch would have, and the newest turn of the newest branch."""
        run = await self._listed() or (await self._first_turn())[1]
        # Visibility is a little late, so later branches and turns may have been started.
        number, taken = self._place(run.description.id)[0] if run else 0, 0
        while taken < MOST_TAKEN_IDS:
            number += 1
            branch_id = f"{self._first}-branch-{number}"
            branch = await ChainedRun.read(self._runs.client, branch_id) if run else None
            if branch is None:
                run = run and await newest_continuation(self._runs.client, run)
                return branch_id, await self._turn(run.description.id) if run else None
            run, taken = (branch, 0) if await self._is_turn(branch) else (run, taken + 1)
        raise self._all_taken()

    async def turns(self) -> AsyncIterator[ThreadTurn]:
        """The turns, the newest first, as far back as Temporal keeps them."""
        turn = await self.newest()
        while turn is not None:
            yield turn
            turn = await self._turn_before(turn)

    async def _turn_before(self, turn: ThreadTurn) -> ThreadTurn | None:
        run = await ChainedRun.read(self._runs.client, turn.run_id)
        if run is None or run.continued is None:
            return None
        source = run.continued.workflow_id, run.continued.run_id
        before = await ChainedRun.read(self._runs.client, source[0])
        # Who continued it elsewhere, on /api, has not named the conversation.
        if before is None or before.source != source or not await self._is_turn(before, is_named=False):
            return None
        return await self._turn(source[0])

    async def reply(
        self, message: UserMessage, intent: Intent = "say", *, said: int = 0, replaces: str = ""
    ) -> ThreadTurn:
        """The turn that replies to a message. It is started, unless an earlier request has done so.

        A message with the id of an earlier one and another text takes its place: its turn begins a branch, without what came
        after that message. So does a message that is to have another answer.

        Args:
            message: The message.
            intent: What the client does with it.
            said: How many messages of the user the client has: where that are no more than were said, this one may be an
                earlier one. With another intent than `say` it may be in any case.
            replaces: The run whose answer is to be replaced, if the client names it: sent again, it gets the new answer.

        Raises:
            Problem: the newest turn has not ended; or two messages were sent at the same time, and this is the other one.
        """
        message.check()
        is_recognized = message.id is not None
        message = message if is_recognized else replace(message, id=secrets.token_hex(16))
        for attempt in range(MOST_TRIES):
            next_branch, newest = await self._newest()
            looks_back = intent != "say" or (newest is not None and 0 < said <= newest.said)
            earlier = await self._reply_to(message, newest, looks_back=looks_back)
            if newest is not None and earlier is not None and earlier.answers(message):
                is_replacement = earlier.run_id != replaces and (newest.is_open or any(self._place(replaces)))
                stands = intent == "edit" or attempt > 0 or is_replacement
                if intent == "say" or (stands and earlier.run_id == newest.run_id):
                    return earlier
            if newest is not None and newest.is_open:
                raise Problem(
                    409, "busy", "The agent has not finished its reply to an earlier message. Wait for its end, decide "
                    f"what it waits for, or stop it: POST /api/runs/{newest.run_id}/stop.",
                )  # fmt: skip
            try:
                if earlier is not None:
                    run_id = await self._start(earlier, message, branch_id=next_branch)
                else:
                    run_id = await self._start(newest, message)
            except StartUnknownError as error:
                if is_recognized:
                    raise
                return await self._turn_after_all(message, error.workflow_id)
            if run_id is not None:
                return replace(await self._turn(run_id), is_new=True)
        raise Problem(
            409, "busy", "Another message of this conversation was sent at the same time. Send this one again."
        )

    async def turn_at(self, number: int) -> ThreadTurn | None:
        """The turn that replies to the user's message before which the conversation has so many messages."""
        turn, left = await self.newest(), MOST_TURNS_BACK
        while turn is not None and left and len(turn.input.messages) > number:
            turn, left = await self._turn_before(turn), left - 1
        return turn if turn is not None and len(turn.input.messages) == number else None

    async def _reply_to(
        self, message: UserMessage, newest: ThreadTurn | None, *, looks_back: bool
    ) -> ThreadTurn | None:
        """The turn that replies to the message with this id: the newest one, or one before it."""
        turn, left = newest, MOST_TURNS_BACK if looks_back else 1
        while turn is not None and not turn.replies_to(message):
            left -= 1
            turn = await self._turn_before(turn) if left else None
        return turn

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

    async def _start(self, before: ThreadTurn | None, message: UserMessage, *, branch_id: str = "") -> str | None:
        """Start the turn after `before`, or with a `branch_id` the turn in its place, and return its id.

        None: there is a run with another message by now.
        """
        marks = {THREAD_ID: self._id, MESSAGE_ID: message.id or ""}
        sent = message.metadata
        if before is not None and branch_id and not sent:  # to have another answer, a page need not say it all again
            sent = self.own_metadata(before)
        metadata = run_metadata(self._caller, sent, marks)
        instructions = message.instructions or None
        try:
            if before is not None:
                options = {
                    "prompt": before.input.prompt if branch_id and before.answers(message) else message.prompt,
                    **metadata,
                    **({"client_instructions": instructions} if instructions else {}),
                }
                if branch_id:
                    return (await self._runs.branch(self._caller, before.run_id, options, branch_id)).id
                return (await self._runs.resume(self._caller, before.run_id, options)).id
            run_input = RunInput(agent=self._agent, prompt=message.prompt, client_instructions=instructions).model_copy(
                update=metadata
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
            raise Problem(
                409, "not_an_agent", f"The workflow {run_id!r} is not a run of an agent; GET /api/runs lists the runs."
            )
        return ThreadTurn(run_id, run_input, described.status == WorkflowExecutionStatus.RUNNING)

    async def _first_turn(self) -> tuple[str, ChainedRun | None]:
        """The id of the first turn, and its run; None: there is none yet."""
        for number in range(1, MOST_TAKEN_IDS + 1):
            run_id = self._first if number == 1 else f"{self._first}-{number}"
            run = await ChainedRun.read(self._runs.client, run_id)
            if run is None or await self._is_turn(run):
                return run_id, run
        raise self._all_taken()

    def _all_taken(self) -> Problem:
        return Problem(
            409, "id_taken", f"Other runs have the ids of the conversation {self._id[:80]!r}; name another one."
        )

    def _place(self, run_id: str) -> tuple[int, int, int]:
        """The place of an id among those of the conversation: its branch, its number if others have the ids before it, and
        how often it was resumed. Zeros: it is none of them.
        """
        match = re.fullmatch(rf"{re.escape(self._first)}(?:-branch-(\d+)|-(\d+))?(-resumed(?:-(\d+))?)?", run_id)
        if match is None:
            return 0, 0, 0
        resumed = int(match[4] or 1) if match[3] else 0
        return int(match[1] or 0), int(match[2] or 1), resumed

    async def _is_turn(self, run: ChainedRun, *, is_named: bool = True) -> bool:
        """Whether a run with an id of this conversation is of the caller's tenant and user, and of this conversation, which
        it must name where nothing else says so.
        """
        if run.tenant != self._caller.tenant or not self._caller.may_use(self._agent):
            return False
        run_input = await read_input(self._runs.client, run.description.id)
        if run_input is None or run_input.user != self._caller.user:
            return False
        return not is_named or run_input.metadata.get(THREAD_ID) == self._id

    async def _listed(self) -> ChainedRun | None:
        """The newest turn that Temporal's visibility knows."""
        query = f'WorkflowId STARTS_WITH "{self._first}" AND ParentWorkflowId IS NULL'
        pages = self._runs.client.list_workflows(query, page_size=LISTED)
        try:
            await pages.fetch_next_page()
        except RPCError as error:
            if error.status != RPCStatusCode.INVALID_ARGUMENT:
                raise
            return None  # an old server, which cannot search for ids
        ids = {each.id for each in pages.current_page or () if any(self._place(each.id))}
        for run_id in sorted(ids, key=self._place, reverse=True):
            run = await ChainedRun.read(self._runs.client, run_id)
            if run is not None and await self._is_turn(run):
                return run
        return None
