"""The handlers through which people reach the agents of a workflow: updates, a signal and a query.

Every workflow with a `DurableAgent` has them, except those that it defines itself under the same name. Validators check
what a client sends, and refuse with one sentence what is wrong before it is written to history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from mulligan.errors import UpdateRefusedError
from mulligan.schema.json_limits import MOST_DEPTH, is_deeper
from mulligan.values import Decision, ToolCall, UserMessage
from mulligan.wire.questions import ASK_PERSON, TOO_MANY_ASK, AskPerson, CheckedAnswer, Question, Reply
from mulligan.wire.updates import (
    ANSWER,
    DECIDE,
    FORM_BYTES,
    PENDING,
    SEND_MESSAGE,
    STOP,
    Answer,
    CheckedEdit,
    Decide,
    SendMessage,
    Stop,
)
from mulligan.workflows import limits
from mulligan.workflows.people.answered_updates import AnsweredUpdates
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.people.parse_update import check_size, parse_update
from mulligan.workflows.people.pending_decisions import PendingDecision

__all__ = ["FIRST_AGENT_KEY", "UpdateHandlers"]

FIRST_AGENT_KEY = "0"
"""The key of a workflow's first agent, which is the only one of an AgentWorkflow."""
CheckEditedArguments = Callable[[str, ToolCall, int, dict[str, Any]], Awaitable[CheckedEdit]]
"""Checks the arguments that a person has edited. Its arguments: the agent's key, the call, its step, the new arguments."""
CheckAnswerToServer = Callable[[str, Question, str], Awaitable[CheckedAnswer]]
"""Checks the answer to the question of an MCP server. Its arguments: the agent's key, the question, the answer's text."""


class UpdateHandlers:
    """The handlers of one workflow, and the inboxes of its agents by their keys.

    `agent_name` returns the name of the agent with a key.
    """

    def __init__(
        self,
        agent_name: Callable[[str], str],
        check_edited_arguments: CheckEditedArguments,
        check_answer: CheckAnswerToServer,
    ) -> None:
        self._agent_name = agent_name
        self._check_edited_arguments = check_edited_arguments
        self._check_answer_to_server = check_answer
        self.is_ready = True
        """False in a continued run that has not loaded its state: it does not know yet which calls wait."""
        self._asking = 0
        """How many running activities wait for a person."""
        self._waiting: dict[asyncio.Task[Any], None] = {}
        """The handlers that wait for an activity or a person, in the order of their beginning."""
        self._has_ended = False
        self.inboxes: dict[str, Inbox] = {}
        self.answered = AnsweredUpdates(self.until_ready)
        self.answered.set_handler(DECIDE, self.decide, self._check_decision)
        self.answered.set_handler(ANSWER, self.answer, self._check_answer)
        # Before the first step of a continued run: a second message with its id, and a second stop, change nothing.
        self.answered.set_handler(SEND_MESSAGE, self.send_message, self._check_message, needs_state=False)
        self.answered.set_handler(STOP, self.stop, self._check_stop, needs_state=False)
        if workflow.get_update_handler(ASK_PERSON) is None:
            workflow.set_update_handler(ASK_PERSON, self.ask_person, validator=self._check_ask)
        if workflow.get_signal_handler(STOP) is None:
            workflow.set_signal_handler(STOP, self.stop_by_signal)
        if workflow.get_query_handler(PENDING) is None:
            workflow.set_query_handler(PENDING, self.pending)

    def inbox(self, key: str) -> Inbox:
        """The inbox of the agent with a key, created if there is none. The agent need not exist yet."""
        if key not in self.inboxes:
            self.inboxes[key] = Inbox(self._count_pending, self.answered)
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
    def _until_end(self) -> Iterator[None]:
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
        self._inbox_of(message.conversation).add_message(message, message_id)
        return {"accepted": True, "id": message_id}

    async def decide(self, argument: Any = None) -> dict[str, Any]:
        """Accept a decision on a call that waits for approval."""
        request = parse_update(Decide, argument)
        key, pending = self._find_decidable(request)
        if request.arguments is not None:
            with self._until_end():
                edit = await self._check_edited_arguments(key, pending.call, pending.step, request.arguments)
            if edit.refused is not None:
                raise UpdateRefusedError(edit.refused)
            # Somebody else may have decided during the check.
            key, pending = self._find_pending(request.call_id, request.conversation, "approval")
            pending.edited_arguments = edit.arguments
        pending.resolve(request.decision, by=request.by, reason=request.reason)
        return {"accepted": True, "call_id": request.call_id}

    async def answer(self, argument: Any = None) -> dict[str, Any]:
        """Accept the answer to an agent's question."""
        request = parse_update(Answer, argument)
        key, pending = self._find_answerable(request)
        if pending.question is None:
            pending.answer = request.text
        elif pending.question.answer_schema is not None:
            with self._until_end():
                checked = await self._check_answer_to_server(key, pending.question, request.text)
            if checked.refused is not None:
                raise UpdateRefusedError(checked.refused)
            # Somebody else may have answered during the check, and the call may have asked something else.
            _, now = self._find_pending(request.call_id, request.conversation, "question")
            if now is not pending:
                raise UpdateRefusedError(f'"{request.call_id}" asks another question by now.')
            pending.content = checked.content
        pending.resolve("answer", by=request.by)
        return {"accepted": True, "call_id": request.call_id}

    async def ask_person(self, argument: Any = None) -> dict[str, Any]:
        """Ask a person for a running call, and wait for the reply. Only activities of this workflow send it."""
        request = parse_update(AskPerson, argument)
        ask = self._inbox_of(request.conversation).ask_for.get(request.call_id)
        if ask is None:
            return Reply(action="cancel").model_dump(mode="json")
        self._asking += 1
        try:
            with self._until_end():
                return (await ask(request.question)).model_dump(mode="json")
        finally:
            self._asking -= 1

    async def stop(self, argument: Any = None) -> dict[str, Any]:
        """Stop a run gracefully: running calls finish, nothing new starts."""
        request = parse_update(Stop, argument)
        for inbox in self._inboxes_of(request.conversation):
            if not inbox.is_idle:
                inbox.request_stop(request)
        return {"accepted": True}

    def stop_by_signal(self, *arguments: Any) -> None:
        """The same, from another workflow. A signal cannot be refused, so invalid arguments stop the run as well."""
        try:
            request = parse_update(Stop, arguments[0] if arguments else None)
        except UpdateRefusedError:
            request = Stop()
        for inbox in self._inboxes_of(None):
            inbox.request_stop(request)

    def pending(self, conversation: str | None = None) -> list[dict[str, Any]]:
        """The calls that wait for a person, the one that has waited longest first. `conversation`: only that agent's."""
        waiting = [
            (pending, key) for key, inbox in self.inboxes.items() for pending in inbox.decisions.waiting.values()
        ]
        waiting.sort(key=lambda entry: entry[0].since)
        return [
            pending.as_pending(self._agent_name(key), key).model_dump(mode="json")
            for pending, key in waiting
            if pending.decision is None and conversation in (None, key)
        ]

    def _check_message(self, argument: Any = None) -> None:
        message = parse_update(SendMessage, argument)
        check_size("text", message.text)
        if message.content is not None:
            check_size("content", message.model_dump_json(include={"content"}))
            _check_text(message)
        if self._inbox_of(message.conversation).is_closed:
            raise UpdateRefusedError(
                "The run is ending, so the message was not accepted. Start another run, or resume this one."
            )
        if limits.is_history_nearly_full():
            raise UpdateRefusedError("The history of the run is nearly full, so the message was not accepted.")

    def _check_decision(self, argument: Any = None) -> None:
        request = parse_update(Decide, argument)
        if self.is_ready:
            self._find_decidable(request)
        if request.arguments is None:
            return
        if request.decision == "deny":
            raise UpdateRefusedError('"arguments" is allowed with "approve" only; a call that is denied does not run.')
        check_size("arguments", request.model_dump_json(include={"arguments"}))
        # Only the shape: a schema's pattern may take forever. The activity `check_edit` validates them.
        if is_deeper(request.arguments):
            raise UpdateRefusedError(f'"arguments" are nested more than {MOST_DEPTH} levels deep.')

    def _check_answer(self, argument: Any = None) -> None:
        request = parse_update(Answer, argument)
        check_size("text", request.text)
        if self.is_ready:
            self._find_answerable(request)

    def _check_ask(self, argument: Any = None) -> None:
        request = parse_update(AskPerson, argument)
        if request.call_id not in self._inbox_of(request.conversation).ask_for:
            raise UpdateRefusedError(f'No call "{request.call_id}" is running that may ask a person.')
        if self._asking >= limits.ASKING_ACTIVITIES:
            raise UpdateRefusedError(TOO_MANY_ASK)

    def _check_stop(self, argument: Any = None) -> None:
        request = parse_update(Stop, argument)
        inboxes = self._inboxes_of(request.conversation)
        if all(inbox.is_closed or inbox.is_idle for inbox in inboxes):
            raise UpdateRefusedError("Nothing is running that could be stopped.")

    async def until_ready(self) -> None:
        """Wait until a continued run has loaded its state."""
        if not self.is_ready:
            await workflow.wait_condition(lambda: self.is_ready)

    def _find_answerable(self, request: Answer) -> tuple[str, PendingDecision]:
        """The question that an answer is for, as `_find_pending` returns it. The answer to a server's has less room."""
        key, pending = self._find_pending(request.call_id, request.conversation, "question")
        if pending.question is not None:
            check_size("text", request.text, FORM_BYTES)
        return key, pending

    def _count_pending(self) -> int:
        return sum(len(inbox.decisions.waiting) for inbox in self.inboxes.values())

    def _inbox_of(self, key: str | None) -> Inbox:
        """The inbox with a key; the only one if None.

        Raises:
            UpdateRefusedError: the key is None and there are several, or there is none with the key.
        """
        if key is None and len(self.inboxes) > 1:
            known = ", ".join(f'"{one}" ({self._agent_name(one)})' for one in self.inboxes)
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
        return [self._inbox_of(key)]

    def _find_decidable(self, request: Decide) -> tuple[str, PendingDecision]:
        """As `_find_pending`: a call that waits for approval; or a question of an MCP server, which may be denied.

        Raises:
            UpdateRefusedError: there is no such call.
        """
        if request.decision == "deny":
            inboxes = {one: box for one, box in self.inboxes.items() if request.conversation in (None, one)}
            for inbox in inboxes.values():
                pending = inbox.decisions.waiting.get(request.call_id)
                if pending is not None and pending.question is not None:
                    return self._find_pending(request.call_id, request.conversation, "question")
        return self._find_pending(request.call_id, request.conversation, "approval")

    def _find_pending(
        self, call_id: str, key: str | None, kind: Literal["approval", "question"]
    ) -> tuple[str, PendingDecision]:
        """The key of the agent whose call waits, and what it waits for.

        Raises:
            UpdateRefusedError: no such call waits, or it waits for the other kind, or calls of several agents have the id.
        """
        inboxes = {one: inbox for one, inbox in self.inboxes.items() if key in (None, one)}
        matches = [
            (one, pending)
            for one, inbox in inboxes.items()
            if (pending := inbox.decisions.waiting.get(call_id)) is not None and pending.decision is None
        ]
        if len(matches) > 1:
            raise UpdateRefusedError(f'Calls of several agents have the id "{call_id}"; name one as "conversation".')
        if not matches:
            decisions = [
                decision for inbox in inboxes.values() if (decision := inbox.decisions.decision_on(call_id)) is not None
            ]
            if decisions:
                how = _describe(decisions[-1])
                raise UpdateRefusedError(f'"{call_id}" no longer waits: {how}.', ended_by=how)
            waiting = ", ".join(entry["call_id"] for entry in self.pending()) or "none"
            raise UpdateRefusedError(f'No call "{call_id}" waits for a person; those that wait: {waiting}.')
        one, pending = matches[0]
        if pending.kind != kind:
            what, update = ("for approval", DECIDE) if pending.kind == "approval" else ("for an answer", ANSWER)
            raise UpdateRefusedError(f'"{call_id}" waits {what}; use the update "{update}".')
        return one, pending


def _check_text(message: SendMessage) -> None:
    try:
        UserMessage(role="user", text=message.text, content=message.content)
    except ValidationError:
        raise UpdateRefusedError('"text" is another text than that of "content"; leave it out.') from None


def _describe(decision: Decision) -> str:
    verb = {
        "approve": "it was approved",
        "deny": "it was denied",
        "answer": "it was answered",
        "timeout": "it timed out",
        "stopped": "the run was stopped",
    }[decision.decision]
    return f"{verb}{f' by {decision.by}' if decision.by else ''} at {decision.at}"
