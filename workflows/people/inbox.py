"""What people said to an agent that it has not taken in yet, and the calls that wait for their word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import JsonValue
from temporalio import workflow

from mulligan.values import Decision, ToolCall, UserMessage
from mulligan.wire.updates import Pending, SendMessage, Stop, iso
from mulligan.workflows import limits

__all__ = ["Inbox", "Wait"]

T = TypeVar("T")
_MEMO = "waiting"
"""The memo by which `mulligan pending` finds the runs that wait, among all that are open."""


@dataclass
class Wait:
    """A call that waits for a person, until it has a `decision`. `parameters`: the JSON schema of its arguments."""

    call: ToolCall
    kind: Literal["approval", "question"]
    arguments: JsonValue
    text: str
    step: int
    parameters: dict[str, Any]
    timeout: float | None = None
    since: float = field(default_factory=workflow.time)
    """Seconds since the epoch."""
    decision: Decision | None = None
    answer: str | None = None
    edited: JsonValue = None

    def settle(
        self,
        decision: Literal["approve", "deny", "answer", "timeout", "stopped"],
        *,
        by: str | None = None,
        reason: str | None = None,
    ) -> None:
        """End the waiting. `edited` and `answer` are set before."""
        self.decision = Decision(
            kind=self.kind,
            decision=decision,
            since=iso(self.since),
            at=iso(workflow.time()),
            by=by,
            reason=reason,
            edited=self.edited is not None,
            before=self.arguments if self.edited is not None else None,
        )

    def pending(self, agent: str, conversation: str) -> Pending:
        """As people see it."""
        until = iso(self.since + self.timeout) if self.timeout is not None else None
        about: dict[str, Any] = {"step": self.step, "agent": agent, "until": until, "conversation": conversation}
        return Pending(
            call_id=self.call.id,
            tool=self.call.name,
            arguments=self.arguments,
            kind=self.kind,
            since=iso(self.since),
            text=self.text,
            **about,
        )


class Inbox:
    """One for each agent of a workflow; it may be there, and filled, before the agent is."""

    def __init__(self, tell: Callable[[], int]) -> None:
        self._tell = tell
        """How many calls wait in the whole workflow."""
        self.messages: dict[str, str] = {}
        """Texts by their ids, in the order in which they came."""
        self.waits: dict[str, Wait] = {}
        self.stop: Stop | None = None
        self.on_stop: Callable[[str | None], None] | None = None
        """Logs that the run is to stop; None before there is an agent."""
        self.is_closed = False
        """Nothing is taken any more: the workflow is about to end."""
        self.is_idle = False
        """Between two turns: there is nothing to stop."""
        self._is_stop_early = False
        self._seen: dict[str, None] = {}
        self._settled: dict[str, Decision] = {}
        self._left: list[str] = []
        """Calls that still waited when the run was cancelled."""
        self._in_hand: workflow.ActivityHandle[Any] | None = None

    def put(self, message: SendMessage, its_id: str) -> None:
        """Keep a message for the next step; not a second time."""
        if its_id in self._seen:
            return
        self._seen[its_id] = None
        if len(self._seen) > limits.MESSAGE_IDS_KEPT:
            del self._seen[next(iter(self._seen))]
        self.messages[its_id] = message.text

    def take(self) -> list[UserMessage]:
        """All that waits, in the order in which it came."""
        taken = self.unread()
        self.messages.clear()
        return taken

    def unread(self) -> list[UserMessage]:
        """The same, and leave it there."""
        return [UserMessage(role="user", text=text) for text in self.messages.values()]

    async def ask(self, wait: Wait) -> Decision:
        """Wait until a person has decided, the time is over, or the run is stopped. That takes nothing of a worker."""
        self.waits[wait.call.id] = wait
        if self.stop is not None:
            wait.settle("stopped", by=self.stop.by, reason=self.stop.reason)
        elif self._tell() == 1:
            workflow.upsert_memo({_MEMO: 1})
        try:
            await workflow.wait_condition(lambda: wait.decision is not None, timeout=wait.timeout)
        except TimeoutError:
            # Whoever decided in the very moment was told that it is taken.
            if wait.decision is None:
                wait.settle("timeout")
        finally:
            del self.waits[wait.call.id]
            if wait.decision is None:
                self._left.append(wait.call.id)
            else:
                self._settled = dict([*self._settled.items(), (wait.call.id, wait.decision)][-limits.DECISIONS_KEPT :])
        if self._tell() == 0 and workflow.memo_value(_MEMO, 0):
            workflow.upsert_memo({_MEMO: 0})
        assert wait.decision is not None
        return wait.decision

    def decision_on(self, call_id: str) -> Decision | None:
        """What became of a call that waited: of one that waits no more, or is just being settled."""
        wait = self.waits.get(call_id)
        return wait.decision if wait is not None else self._settled.get(call_id)

    def undecided(self) -> list[str]:
        """The calls that nobody has decided on: they have not run."""
        return [*self._left, *(call_id for call_id, wait in self.waits.items() if wait.decision is None)]

    def stop_now(self, stop: Stop) -> None:
        """Let what runs come to its end, and nothing begin: no call, no waiting. The first one's reason holds."""
        if self.stop is not None:
            return
        self.stop = stop
        if self.on_stop is not None:
            self.on_stop(stop.reason)
        else:
            self._is_stop_early = True
        for wait in self.waits.values():
            if wait.decision is None:
                wait.settle("stopped", by=stop.by, reason=stop.reason)
        if self._in_hand is not None:
            # Kept by the loop: an endpoint that is down would be waited for as long as the agent's patience is.
            self._giving_up = asyncio.create_task(self._give_up(self._in_hand))

    def log_early_stop(self) -> None:
        """Log a stop that came before there was an agent to log it."""
        if self._is_stop_early and self.stop is not None and self.on_stop is not None:
            self._is_stop_early = False
            self.on_stop(self.stop.reason)

    async def unless_stopped(self, handle: workflow.ActivityHandle[T]) -> T:
        """Wait for an activity; where the run is stopped, not longer than its grace.

        Raises:
            ActivityError: it failed, or was cancelled for that.
        """
        self._in_hand = handle
        try:
            return await _result(handle)
        finally:
            self._in_hand = None

    async def _give_up(self, handle: workflow.ActivityHandle[Any]) -> None:
        await workflow.sleep(limits.STOP_GRACE)
        handle.cancel()

    def dump(self) -> dict[str, Any]:
        """What continue-as-new carries, as JSON; between two steps nothing waits."""
        state: dict[str, Any] = {}
        if self._seen:
            state = {"messages": self.messages, "seen": list(self._seen)}
        if self.stop is not None:
            state["stop"] = self.stop.model_dump(mode="json")
        return state

    def load(self, state: dict[str, Any]) -> None:
        """What `dump` gave comes before what has come in since: that may have been said before already."""
        seen = dict.fromkeys(state.get("seen", []))
        since = {its_id: text for its_id, text in self.messages.items() if its_id not in seen}
        self.messages = {**state.get("messages", {}), **since}
        self._seen = {**seen, **self._seen}
        if "stop" in state:
            self.stop = Stop.model_validate(state["stop"])


async def _result(handle: Awaitable[T]) -> T:
    return await handle
