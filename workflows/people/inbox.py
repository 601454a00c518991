"""The messages that an agent has not added to its conversation yet, and the request to stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio import workflow

from mulligan.values import UserMessage
from mulligan.wire.updates import SendMessage, Stop
from mulligan.workflows import limits
from mulligan.workflows.listed_status import ListedWaits
from mulligan.workflows.people.answered_updates import AnsweredUpdates
from mulligan.workflows.waits import Waits

T = TypeVar("T")


class Inbox:
    """The inbox of one agent of a workflow. It may exist, and receive messages, before its agent does.

    `listed`: what lists show of the waits of the whole workflow; `answered`: the updates of the whole workflow.
    """

    def __init__(self, listed: ListedWaits, answered: AnsweredUpdates) -> None:
        self._answered = answered
        self.waits = Waits(listed)
        """What the agent waits for."""
        self.messages: dict[str, UserMessage] = {}
        """New messages by their ids, in the order of their arrival."""
        self.stop: Stop | None = None
        """The request to stop the turn, if there is one."""
        self.on_stop: Callable[[str | None], None] | None = None
        """Logs a request to stop, with its reason; None before there is an agent."""
        self.is_closed = False
        """Whether messages are refused, as the workflow is about to end."""
        self.is_idle = False
        """Whether the agent is between two turns, so that there is nothing to stop."""
        self._is_stop_unlogged = False
        self._seen_ids: dict[str, None] = {}
        self._model_activity: workflow.ActivityHandle[Any] | None = None
        """The model call that is running."""

    def begin_turn(self) -> None:
        """Accept messages and requests to stop for a new turn."""
        self.is_idle = self.is_closed = False

    def end_turn(self) -> None:
        """Drop the request to stop: it was for the turn that has ended."""
        self.stop, self.is_idle = None, True

    def fail_turn(self) -> None:
        """Refuse messages from now on, until there is another turn: the workflow ends if it does not catch the error."""
        self.end_turn()
        self.is_closed = True

    def add_message(self, message: SendMessage, message_id: str) -> None:
        """Keep a message for the next step. One whose id has come before is ignored."""
        if message_id in self._seen_ids:
            return
        self._seen_ids[message_id] = None
        if len(self._seen_ids) > limits.MESSAGE_IDS_KEPT:
            del self._seen_ids[next(iter(self._seen_ids))]
        self.messages[message_id] = UserMessage(role="user", text=message.text, content=message.content)

    def take_messages(self) -> list[UserMessage]:
        """Remove and return the new messages, in the order of their arrival."""
        taken = self.new_messages()
        self.messages.clear()
        return taken

    def new_messages(self) -> list[UserMessage]:
        """The new messages, in the order of their arrival."""
        return list(self.messages.values())

    def request_stop(self, stop: Stop) -> None:
        """Let running calls finish, and start nothing new. A second request changes nothing."""
        if self.stop is not None:
            return
        self.stop = stop
        if self.on_stop is not None:
            self.on_stop(stop.reason)
        else:
            self._is_stop_unlogged = True
        self.waits.stop(stop)
        if self._model_activity is not None:
            # Without this, an endpoint that is down would be retried for as long as the agent's patience. The event loop
            # has only a weak reference to the task, so it is stored.
            self._cancelling = asyncio.create_task(self._cancel_after_grace(self._model_activity))

    def log_early_stop(self) -> None:
        """Log a request to stop that came before there was an agent to log it."""
        if self._is_stop_unlogged and self.stop is not None and self.on_stop is not None:
            self._is_stop_unlogged = False
            self.on_stop(self.stop.reason)

    async def unless_stopped(self, handle: workflow.ActivityHandle[T]) -> T:
        """Wait for a model's activity, which is cancelled if it runs longer than the grace time after a request to stop.

        Raises:
            ActivityError: the activity failed or was cancelled.
        """
        self._model_activity = handle
        try:
            return await _result(handle)
        finally:
            self._model_activity = None

    async def _cancel_after_grace(self, handle: workflow.ActivityHandle[Any]) -> None:
        await workflow.sleep(limits.STOP_GRACE, summary="stop requested: grace time of the model call")
        handle.cancel()

    def dump(self) -> dict[str, Any]:
        """The state that continue-as-new carries, as JSON."""
        return {
            "messages": {message_id: message.model_dump(mode="json") for message_id, message in self.messages.items()},
            "seen": list(self._seen_ids),
            "stop": self.stop.model_dump(mode="json") if self.stop else None,
            "answered": self._answered.dump(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Put what `dump` returned before what has come in since. A new message may repeat an id of an earlier one."""
        seen = dict.fromkeys(state["seen"])
        new = {message_id: message for message_id, message in self.messages.items() if message_id not in seen}
        carried = {message_id: UserMessage.model_validate(each) for message_id, each in state["messages"].items()}
        self.messages = {**carried, **new}
        self._seen_ids = {**seen, **self._seen_ids}
        self._answered.load(state["answered"])
        if state["stop"] is not None:
            self.stop = Stop.model_validate(state["stop"])
        self.log_early_stop()


async def _result(handle: Awaitable[T]) -> T:
    return await handle
