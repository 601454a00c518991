"""The handlers by which people speak to the agents of a workflow: updates, a signal, a query.

Every workflow that holds a `DurableAgent` has them, but those of a name that it defines itself. Whatever a client sends
is looked at here: what cannot be is refused with a sentence, before it is in history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow

from mulligan.errors import UpdateRefusedError
from mulligan.output import NotOfSchema, check_schema
from mulligan.values import Decision, ToolCall
from mulligan.wire.updates import (
    ANSWER,
    DECIDE,
    MESSAGE_BYTES,
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
from mulligan.workflows.people.inbox import Inbox, Wait

__all__ = ["FIRST", "UpdateHandlers"]

_Asked = TypeVar("_Asked", bound=BaseModel)
FIRST = "0"
"""The key of a workflow's first agent; of an AgentWorkflow's only one."""
Edit = Callable[[str, ToolCall, int, dict[str, Any]], Awaitable[CheckedEdit]]
"""Looks at the edited arguments of a call of an agent (its key), of a step."""


class UpdateHandlers:
    """The inboxes of a workflow's agents, by their keys, and what fills them."""

    def __init__(self, name_of: Callable[[str], str], edit: Edit) -> None:
        self._name_of = name_of
        self._edit = edit
        self._inboxes: dict[str, Inbox] = {}
        for name, handler, validator in (
            (SEND_MESSAGE, self.send_message, self._check_message),
            (DECIDE, self.decide, self._check_decision),
            (ANSWER, self.answer, self._check_answer),
            (STOP, self.stop, self._check_stop),
        ):
            if workflow.get_update_handler(name) is None:
                workflow.set_update_handler(name, handler, validator=validator)
        if workflow.get_signal_handler(STOP) is None:
            workflow.set_signal_handler(STOP, self.stop_by_signal)
        if workflow.get_query_handler(PENDING) is None:
            workflow.set_query_handler(PENDING, self.pending)

    def inbox(self, key: str) -> Inbox:
        """The inbox of an agent, there already or not."""
        if key not in self._inboxes:
            self._inboxes[key] = Inbox(self._waiting)
        return self._inboxes[key]

    def close(self) -> None:
        """Take nothing any more: the workflow ends."""
        for inbox in self._inboxes.values():
            inbox.is_closed = True

    async def send_message(self, asked: Any = None) -> dict[str, Any]:
        """A message for the agent: it joins the conversation at the next step."""
        said = _read(SendMessage, asked)
        info = workflow.current_update_info()
        its_id = said.id or (info.id if info else "")
        self._of(said.conversation).put(said, its_id)
        return {"accepted": True, "id": its_id}

    async def decide(self, asked: Any = None) -> dict[str, Any]:
        """A person's decision on a call that waits for approval."""
        said = _read(Decide, asked)
        key, wait = self._wait(said.call_id, said.conversation, "approval")
        if said.arguments is not None:
            edited = await self._edit(key, wait.call, wait.step, said.arguments)
            if edited.refused is not None:
                raise UpdateRefusedError(edited.refused)
            key, wait = self._wait(said.call_id, said.conversation, "approval")
            wait.edited = edited.arguments
        wait.settle(said.decision, by=said.by, reason=said.reason)
        return {"accepted": True, "call_id": said.call_id}

    async def answer(self, asked: Any = None) -> dict[str, Any]:
        """A person's answer to the agent's question."""
        said = _read(Answer, asked)
        _, wait = self._wait(said.call_id, said.conversation, "question")
        wait.answer = said.text
        wait.settle("answer", by=said.by)
        return {"accepted": True, "call_id": said.call_id}

    async def stop(self, asked: Any = None) -> dict[str, Any]:
        """End with grace: what runs may finish, nothing new begins."""
        said = _read(Stop, asked)
        for inbox in self._meant(said.conversation):
            if not inbox.is_idle:
                inbox.stop_now(said)
        return {"accepted": True}

    def stop_by_signal(self, asked: Any = None) -> None:
        """The same, from another workflow. A signal cannot be refused: one that says nothing sensible stops all the same."""
        try:
            said = _read(Stop, asked)
        except UpdateRefusedError:
            said = Stop()
        for inbox in self._meant(None):
            inbox.stop_now(said)

    def pending(self) -> list[dict[str, Any]]:
        """What waits for a person, the longest first."""
        waits = [(wait, key) for key, inbox in self._inboxes.items() for wait in inbox.waits.values()]
        waits.sort(key=lambda found: found[0].since)
        return [
            wait.pending(self._name_of(key), key).model_dump(mode="json")
            for wait, key in waits
            if wait.decision is None
        ]

    def _check_message(self, asked: Any = None) -> None:
        said = _read(SendMessage, asked)
        _fits("text", said.text)
        inbox = self._of(said.conversation)
        if inbox.is_closed:
            raise UpdateRefusedError(
                "The run is ending: the message was not taken. Start another run, or resume this one."
            )
        if limits.is_history_long():
            raise UpdateRefusedError("The history of the run is nearly full: the message was not taken.")

    def _check_decision(self, asked: Any = None) -> None:
        said = _read(Decide, asked)
        _, wait = self._wait(said.call_id, said.conversation, "approval")
        if said.arguments is None:
            return
        if said.decision == "deny":
            raise UpdateRefusedError('"arguments" go with "approve"; a call that is denied does not run.')
        _fits("arguments", said.model_dump_json(include={"arguments"}))
        try:
            check_schema(wait.parameters, said.arguments)
        except NotOfSchema as error:
            raise UpdateRefusedError(f"`{wait.call.name}` does not take these arguments: {error}.") from None

    def _check_answer(self, asked: Any = None) -> None:
        said = _read(Answer, asked)
        _fits("text", said.text)
        self._wait(said.call_id, said.conversation, "question")

    def _check_stop(self, asked: Any = None) -> None:
        said = _read(Stop, asked)
        meant = self._meant(said.conversation)
        if all(inbox.is_closed or inbox.is_idle for inbox in meant):
            raise UpdateRefusedError("Nothing runs that could be stopped.")

    def _waiting(self) -> int:
        return sum(len(inbox.waits) for inbox in self._inboxes.values())

    def _of(self, key: str | None) -> Inbox:
        """The inbox that is meant: the only one where none is named.

        Raises:
            UpdateRefusedError: there are several, or none of that name.
        """
        if key is None and len(self._inboxes) > 1:
            known = ", ".join(f'"{one}" ({self._name_of(one)})' for one in self._inboxes)
            raise UpdateRefusedError(f'The workflow has several agents; name one as "conversation": {known}.')
        inbox = self._inboxes.get(FIRST if key is None else key)
        if inbox is None:
            known = ", ".join(self._inboxes) or "none"
            raise UpdateRefusedError(f'There is no conversation "{FIRST if key is None else key}"; there are: {known}.')
        return inbox

    def _meant(self, key: str | None) -> list[Inbox]:
        if key is None and self._inboxes:
            return list(self._inboxes.values())
        return [self._of(key)]

    def _wait(self, call_id: str, key: str | None, kind: Literal["approval", "question"]) -> tuple[str, Wait]:
        """The call that waits.

        Raises:
            UpdateRefusedError: none does, or not any more, or for something else.
        """
        named = [(one, inbox) for one, inbox in self._inboxes.items() if key in (None, one)]
        found = [(one, inbox.waits[call_id]) for one, inbox in named if call_id in inbox.waits]
        found = [(one, wait) for one, wait in found if wait.decision is None]
        if len(found) > 1:
            raise UpdateRefusedError(f'Calls of several agents have the id "{call_id}"; name one as "conversation".')
        if not found:
            settled = [decision for _, inbox in named if (decision := inbox.decision_on(call_id)) is not None]
            if settled:
                raise UpdateRefusedError(f'"{call_id}" no longer waits: {_told(settled[-1])}.')
            open_ones = ", ".join(wait["call_id"] for wait in self.pending()) or "none"
            raise UpdateRefusedError(f'No call "{call_id}" waits for a person; those that wait: {open_ones}.')
        one, wait = found[0]
        if wait.kind != kind:
            right = f'for approval; use the update "{DECIDE}"'
            right = right if wait.kind == "approval" else f'for an answer; use the update "{ANSWER}"'
            raise UpdateRefusedError(f'"{call_id}" waits {right}.')
        return one, wait


def _read(kind: type[_Asked], asked: Any) -> _Asked:
    try:
        return kind.model_validate({} if asked is None else asked)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        fields = ", ".join(f'"{name}"' for name in kind.model_fields)
        says = {"missing": "is missing", "extra_forbidden": f"is no known field; known are {fields}"}.get(fault["type"])
        said = fault["msg"][0].lower() + fault["msg"][1:]
        subject = f'"{where}"' if where else "The update's argument"
        raise UpdateRefusedError(f"{subject} {says or 'cannot be taken: ' + said}.") from None


def _fits(name: str, text: str) -> None:
    if (size := len(text.encode())) > MESSAGE_BYTES:
        raise UpdateRefusedError(f'"{name}" has {size:,} bytes; {MESSAGE_BYTES:,} can be taken.')


def _told(decision: Decision) -> str:
    verb = {
        "approve": "it was approved",
        "deny": "it was denied",
        "answer": "it was answered",
        "timeout": "its time was over",
        "stopped": "the run was stopped",
    }[decision.decision]
    return f"{verb}{f' by {decision.by}' if decision.by else ''} at {decision.at}"
