"""The handlers of the updates `decide` and `answer`: people decide on calls that wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from temporalio.exceptions import ActivityError, is_cancelled_exception

from mulligan.errors import UpdateRefusedError
from mulligan.schema.json_limits import MOST_DEPTH, is_deeper
from mulligan.wire.parse_update import check_size, parse_update
from mulligan.wire.questions import CHECK_ANSWER, CheckAnswer, CheckedAnswer, Question
from mulligan.wire.tool_call import digest_of_call, without_arguments
from mulligan.wire.updates import ANSWER, CHECK_EDIT, DECIDE, FORM_BYTES, POLICY, Answer, CheckedEdit, CheckEdit, Decide
from mulligan.workflows.people.inbox import Inbox
from mulligan.workflows.people.person_wait import PersonWait, how_decided

if TYPE_CHECKING:
    from mulligan.workflows.feature import AfterDecision
    from mulligan.workflows.running_agent import RunningAgent
    from mulligan.workflows.workflow_agents import WorkflowAgents


class DecisionHandlers:
    """The handlers of one workflow with agents."""

    def __init__(self, agents: WorkflowAgents) -> None:
        self._agents, self._handlers = agents, agents.handlers
        agents.handlers.answered.set_handler(DECIDE, self.decide, self._check_decision)
        agents.handlers.answered.set_handler(ANSWER, self.answer, self._check_answer)

    async def decide(self, argument: Any = None) -> dict[str, Any]:
        """Accept a decision on a call that waits for approval."""
        request = parse_update(Decide, argument)
        key, pending, to_do = self._find_decidable(request)
        answer: dict[str, Any] = {"accepted": True, "call_id": request.call_id}
        if request.arguments is not None and (outcome := await self._edit(key, pending, request)):
            return answer | outcome
        pending.resolve(request.decision, by=request.by, reason=request.reason)
        for each in to_do:
            with self._handlers.until_end():
                answer |= await each()
        return answer

    async def answer(self, argument: Any = None) -> dict[str, Any]:
        """Accept the answer to an agent's question."""
        request = parse_update(Answer, argument)
        key, pending = self._find_answerable(request)
        if pending.question is None:
            pending.answer = request.text
        elif pending.question.answer_schema is not None:
            with self._handlers.until_end():
                checked = await self._checked_answer(self._agents.agent(key), pending.question, request.text)
            if checked.refused is not None:
                raise UpdateRefusedError(checked.refused)
            # Somebody else may have answered during the check, and the call may have asked something else.
            _, now = self._find_pending(request.call_id, request.conversation, "question")
            if now is not pending:
                raise UpdateRefusedError(f'"{request.call_id}" now asks another question; read it again.')
            pending.content = checked.content
        pending.resolve("answer", by=request.by)
        return {"accepted": True, "call_id": request.call_id}

    def _check_decision(self, argument: Any = None) -> None:
        request = parse_update(Decide, argument)
        if self._handlers.is_ready:
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
        if self._handlers.is_ready:
            self._find_answerable(request)

    def _find_answerable(self, request: Answer) -> tuple[str, PersonWait]:
        """The question that an answer is for, as `_find_pending` returns it. The answer to a server's has less room."""
        key, pending = self._find_pending(request.call_id, request.conversation, "question")
        if pending.question is not None:
            check_size("text", request.text, FORM_BYTES)
        return key, pending

    def _find_decidable(self, request: Decide) -> tuple[str, PersonWait, list[AfterDecision]]:
        """Find a call that waits for approval, or a question of an MCP server, which may be denied; and what is to be done
        after the decision.

        Raises:
            UpdateRefusedError: there is no such call, or it needs a role that whoever decides does not have.
        """
        if request.decision == "deny":
            for inbox in self._inboxes(request.conversation).values():
                pending = inbox.waits.find(PersonWait, request.call_id)
                if pending is not None and pending.question is not None:
                    return *self._find_pending(request.call_id, request.conversation, "question"), []
        key, pending = self._find_pending(request.call_id, request.conversation, "approval")
        if not pending.may_approve(request.roles):
            raise UpdateRefusedError(
                f'"{request.call_id}" waits for somebody with the role "{pending.role}"; you do not have it.',
                role=pending.role,
            )
        if request.decision == "approve" and request.edits not in (None, pending.edits):
            raise UpdateRefusedError(
                f'Somebody has edited the arguments of "{request.call_id}" meanwhile; read them first.'
            )
        features = self._agents.agent(key).with_method("deciding")
        return key, pending, [each for feature in features if (each := feature.deciding(pending, request)) is not None]

    def _find_pending(
        self, call_id: str, key: str | None, kind: Literal["approval", "question"]
    ) -> tuple[str, PersonWait]:
        """The key of the agent whose call waits, and what it waits for.

        Raises:
            UpdateRefusedError: no such call waits, or it waits for the other kind, or calls of several agents have the id.
        """
        inboxes = self._inboxes(key)
        matches = [
            (agent_key, pending)
            for agent_key, inbox in inboxes.items()
            if (pending := inbox.waits.find(PersonWait, call_id)) is not None and pending.decision is None
        ]
        if len(matches) > 1:
            raise UpdateRefusedError(f'Calls of several agents have the id "{call_id}"; name one as "conversation".')
        if not matches:
            raise self._too_late(call_id, inboxes.values())
        agent_key, pending = matches[0]
        if pending.reason != kind:
            what, update = ("for approval", DECIDE) if pending.reason == "approval" else ("for an answer", ANSWER)
            raise UpdateRefusedError(f'"{call_id}" waits {what}; use the update "{update}".')
        return agent_key, pending

    def _too_late(self, call_id: str, inboxes: Iterable[Inbox]) -> UpdateRefusedError:
        """The refusal for a call that does not wait: how its wait has ended, if it waited."""
        for waits in (inbox.waits for inbox in inboxes):
            wait = waits.find(PersonWait, call_id)
            how = how_decided(wait.decision) if wait and wait.decision else waits.how_ended(PersonWait, call_id)
            if how is not None:
                return UpdateRefusedError(f'"{call_id}" no longer waits: {how}.', ended_by=how)
        waiting = ", ".join(entry["call_id"] for entry in self._handlers.pending()) or "none"
        return UpdateRefusedError(f'No call "{call_id}" waits for a person; those that wait: {waiting}.')

    def _inboxes(self, key: str | None) -> dict[str, Inbox]:
        return {agent_key: inbox for agent_key, inbox in self._handlers.inboxes.items() if key in (None, agent_key)}

    async def _edit(self, key: str, pending: PersonWait, request: Decide) -> dict[str, Any]:
        """Replace the arguments of a waiting call by those of a request, which is its editor's approval of them.

        Returns: what came of it where the call is not approved by that, as fields of the update's result; else nothing.
        """
        agent = self._agents.agent(key)
        with self._handlers.until_end():
            edit = await self._checked_edit(agent, pending, request.arguments or {})
        if edit.refused is not None:
            raise UpdateRefusedError(edit.refused)
        # Somebody else may have decided during the check, or edited, so that another role is needed.
        if self._find_decidable(request)[1] is not pending:
            raise UpdateRefusedError(f'"{request.call_id}" is now another call; read the waiting calls again.')
        pending.edit(edit.arguments, edit.argument_digest, role=edit.role, by=request.by)
        if edit.denied is not None:
            pending.resolve("deny", by=POLICY, reason=edit.denied)
            return {"denied": edit.denied}
        if edit.role is None or pending.may_approve(request.roles):
            return {}
        agent.conversation.event_log.edited(pending.index, pending.text, edit.role, request.by, request.reason)
        no_rule = {"rule_refused": f'The call waits for somebody with the role "{edit.role}".'}
        return {"role": edit.role, **(no_rule if request.remember else {})}

    async def _checked_edit(self, agent: RunningAgent, pending: PersonWait, arguments: dict[str, Any]) -> CheckedEdit:
        """Have a worker of the agent check arguments that a person has edited. Refused if no worker can check them."""
        request = CheckEdit(
            where=agent.context,
            call=without_arguments(pending.call),
            arguments=arguments,
            step=pending.step,
            definition=agent.facts.digest,
            metadata=agent.input.metadata if agent.input else {},
            digest=digest_of_call(pending.call),
        )
        try:
            return await agent.activity(CHECK_EDIT, request, CheckedEdit, summary=pending.call.name)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return CheckedEdit(refused=f"The arguments could not be checked ({error.cause or error}); try again.")

    async def _checked_answer(self, agent: RunningAgent, question: Question, text: str) -> CheckedAnswer:
        """Have a worker check a person's answer to a question with a schema. It is refused as well if no worker can."""
        request = CheckAnswer(where=agent.context, question=question, text=text)
        try:
            return await agent.activity(CHECK_ANSWER, request, CheckedAnswer)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return CheckedAnswer(refused=f"The answer could not be checked ({error.cause or error}); try again.")
