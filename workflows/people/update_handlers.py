"""The handlers through which people reach the agents of a workflow: updates, a signal and a query.

Every workflow with a `DurableAgent` has them, except those that it defines itself under the same name. Validators check
what a client sends, and refuse with one sentence what is wrong before it is written to history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from mulligan.errors import UpdateRefusedError
from mulligan.values import UserMessage
from mulligan.wire.parse_update import check_size, parse_update
from mulligan.wire.updates import PENDING, SEND_MESSAGE, STOP, SendMessage, Stop
from mulligan.workflows import limits
from mulligan.workflows.listed_status import ListedWaits
from mulligan.workflows.people.answered_updates import AnsweredUpdates
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.people.person_wait import FIRST_AGENT_KEY, PersonWait


class UpdateHandlers:
    """The handlers of one workflow, and the inboxes of its agents by their keys.

    `agent_name` returns the name of the agent with a key.
    """

    def __init__(self, agent_name: Callable[[str], str]) -> None:
        self._agent_name = agent_name
        self.is_continued, self.is_ready = False, True
        """False in a continued run that has not loaded its state: it does not know yet which calls wait."""
        self._waiting: dict[asyncio.Task[Any], None] = {}
        """The handlers that wait for an activity or a person, in the order of their beginning."""
        self._has_ended = False
        self.inboxes: dict[str, Inbox] = {}
        self.answered = AnsweredUpdates(self.until_ready)
        self._listed = ListedWaits(self._open_kinds)
        # Before the first step of a continued run: a second message with its id, and a second stop, change nothing.
        self.answered.set_handler(SEND_MESSAGE, self.send_message, self._check_message, needs_state=False)
        self.answered.set_handler(STOP, self.stop, self._check_stop, needs_state=False)
        if workflow.get_signal_handler(STOP) is None:
            workflow.set_signal_handler(STOP, self.stop_by_signal)
        if workflow.get_query_handler(PENDING) is None:
            workflow.set_query_handler(PENDING, self.pending)

    def inbox(self, key: str) -> Inbox:
        """The inbox of the agent with a key, created if there is none. The agent need not exist yet."""
        if key not in self.inboxes:
            self.inboxes[key] = Inbox(self._listed, self.answered)
        return self.inboxes[key]

    def close(self) -> None:
        """Refuse further messages, as the workflow is about to end."""
        for inbox in self.inboxes.values():
            inbox.is_closed = True

    async def end(self) -> None:
        """Refuse what handlers still wait for, as the run was cancelled or has failed, until each update has its answer."""
        self.close()
        self._has_ended = True
        for handler in self._waiting:
            handler.cancel()
        await workflow.wait_condition(workflow.all_handlers_finished)

    @contextmanager
    def until_end(self) -> Iterator[None]:
        """Let `end` interrupt what the handler awaits in the block.

        Raises:
            UpdateRefusedError: the run has ended.
        """
        handler = asyncio.current_task()
        assert handler is not None
        self._waiting[handler] = None
        try:
            yield
        except (asyncio.CancelledError, ActivityError) as error:
            if not (self._has_ended and is_cancelled_exception(error)):
                raise
            raise UpdateRefusedError("The run has ended meanwhile, so nothing was changed.") from None
        finally:
            del self._waiting[handler]

    async def send_message(self, argument: Any = None) -> dict[str, Any]:
        """Accept a message for an agent. It is added to the conversation at the next step."""
        message = parse_update(SendMessage, argument)
        info = workflow.current_update_info()
        message_id = message.id or (info.id if info else "")
        self.inbox_of(message.conversation).add_message(message, message_id)
        return {"accepted": True, "id": message_id}

    async def stop(self, argument: Any = None) -> dict[str, Any]:
        """Stop a run gracefully: running calls finish, nothing new starts."""
        request = parse_update(Stop, argument)
        for inbox in self._inboxes_of(request.conversation):
            if not inbox.is_idle:
                inbox.request_stop(request)
        return {"accepted": True}

    def stop_by_signal(self, *arguments: Any) -> None:
        """Stop the run for another workflow. A signal cannot be refused, so invalid arguments stop it as well."""
        try:
            request = parse_update(Stop, arguments[0] if arguments else None)
        except UpdateRefusedError:
            request = Stop()
        for inbox in self._inboxes_of(None):
            inbox.request_stop(request)

    def pending(self, conversation: str | None = None) -> list[dict[str, Any]]:
        """The calls that wait for a person, the one that has waited longest first. `conversation`: only that agent's."""
        waiting = [(wait, key) for key, inbox in self.inboxes.items() for wait in inbox.waits.of(PersonWait)]
        waiting.sort(key=lambda entry: entry[0].since)
        return [
            wait.as_pending(self._agent_name(key), key).model_dump(mode="json")
            for wait, key in waiting
            if wait.decision is None and conversation in (None, key)
        ]

    def _check_message(self, argument: Any = None) -> None:
        message = parse_update(SendMessage, argument)
        check_size("text", message.text)
        if message.content is not None:
            check_size("content", message.model_dump_json(include={"content"}))
            _check_text(message)
        if self.inbox_of(message.conversation).is_closed:
            raise UpdateRefusedError(
                "The run is ending, so the message was not accepted. Start another run, or resume this one."
            )
        if limits.is_history_nearly_full():
            raise UpdateRefusedError("The history of the run is nearly full, so the message was not accepted.")

    def _check_stop(self, argument: Any = None) -> None:
        request = parse_update(Stop, argument)
        inboxes = self._inboxes_of(request.conversation)
        if all(inbox.is_closed or inbox.is_idle for inbox in inboxes):
            raise UpdateRefusedError("Nothing is running that could be stopped.")

    async def until_ready(self) -> None:
        """Wait until a continued run has loaded its state.

        Each update of such a run waits, also if the state is there: an update that arrives before the first workflow task
        was completed may be replayed after it, and must take as many turns of the event loop then. Otherwise updates end
        in another order, which the SDK refuses, and the run hangs.
        """
        if self.is_continued:
            await workflow.wait_condition(lambda: self.is_ready)

    def _open_kinds(self) -> list[str | None]:
        return [wait.kind for inbox in self.inboxes.values() for wait in inbox.waits.open.values()]

    def inbox_of(self, key: str | None) -> Inbox:
        """The inbox with a key; the only one if None.

        Raises:
            UpdateRefusedError: the key is None and there are several, or there is none with the key.
        """
        if key is None and len(self.inboxes) > 1:
            known = ", ".join(f'"{agent_key}" ({self._agent_name(agent_key)})' for agent_key in self.inboxes)
            raise UpdateRefusedError(f'The workflow has several agents; name one as "conversation": {known}.')
        inbox = self.inboxes.get(FIRST_AGENT_KEY if key is None else key)
        if inbox is None:
            known = ", ".join(self.inboxes) or "none"
            raise UpdateRefusedError(
                f'There is no conversation "{FIRST_AGENT_KEY if key is None else key}"; there are: {known}.'
            )
        return inbox

    def _inboxes_of(self, key: str | None) -> list[Inbox]:
        """The inbox with a key; all of them if None."""
        if key is None and self.inboxes:
            return list(self.inboxes.values())
        return [self.inbox_of(key)]


def _check_text(message: SendMessage) -> None:
    try:
        UserMessage(role="user", text=message.text, content=message.content)
    except ValidationError:
        raise UpdateRefusedError('"text" is another text than that of "content"; leave it out.') from None
