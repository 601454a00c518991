"""Who answers the worker's questions, and takes in what people say: every workflow that holds a `DurableAgent` has one."""

from __future__ import annotations

from typing import Any, Protocol

from temporalio import workflow

from mulligan.run_input import RunInput
from mulligan.values import ToolCall
from mulligan.wire.agent_facts import DEFINITION_QUERY, INPUT_QUERY, AgentFacts, Definition
from mulligan.wire.conversation_ref import CONVERSATION_QUERY, INPUT_MESSAGES_QUERY, Page, PageRequest
from mulligan.wire.run_context import RunContext
from mulligan.wire.updates import CheckedEdit, CheckEdit
from mulligan.workflows import dispatch, limits
from mulligan.workflows.conversation.conversation import Conversation, fitting
from mulligan.workflows.people.update_handlers import UpdateHandlers


class RegisteredAgent(Protocol):
    """Whom workers ask about: an agent of the workflow."""

    agent: str
    conversation: Conversation
    input: RunInput | None

    @property
    def facts(self) -> AgentFacts:
        """What was pinned when its turn opened."""
        ...

    @property
    def where(self) -> RunContext:
        """What its activities are told."""
        ...


class WorkflowAgents:
    """The agents of one workflow by their key, and the query handlers through which workers read them."""

    def __init__(self) -> None:
        self._agents: dict[str, RegisteredAgent] = {}
        self.handlers = UpdateHandlers(self._name_of, self._edited)

    @classmethod
    def of_this_workflow(cls) -> WorkflowAgents:
        """The one of the workflow that is running: the SDK keeps it for us, as its queries' handler."""
        handler = workflow.get_query_handler(CONVERSATION_QUERY)
        if handler is not None:
            workflow_agents = handler.__self__  # type: ignore[attr-defined]
            assert isinstance(workflow_agents, WorkflowAgents)
            return workflow_agents
        workflow_agents = cls()
        workflow.set_query_handler(CONVERSATION_QUERY, workflow_agents.conversation)
        workflow.set_query_handler(INPUT_QUERY, workflow_agents.input)
        workflow.set_query_handler(INPUT_MESSAGES_QUERY, workflow_agents.input_messages)
        workflow.set_query_handler(DEFINITION_QUERY, workflow_agents.definition)
        return workflow_agents

    def register(self, agent: RegisteredAgent) -> str:
        """Give an agent its key: its number in the workflow, the same after replay and continue-as-new."""
        key = str(len(self._agents))
        self._agents[key] = agent
        return key

    def _name_of(self, key: str) -> str:
        return self._agents[key].agent if key in self._agents else ""

    async def _edited(self, key: str, call: ToolCall, step: int, arguments: dict[str, Any]) -> CheckedEdit:
        """What a person made of a call's arguments, looked at by the agent's worker."""
        agent = self._agents[key]
        metadata = agent.input.metadata if agent.input else {}
        return await dispatch.check_edit(
            CheckEdit(
                where=agent.where,
                call=call.model_copy(update={"arguments": ""}),
                arguments=arguments,
                step=step,
                definition=agent.facts.digest,
                metadata=metadata,
            )
        )

    def conversation(self, asked: PageRequest) -> Page:
        """Messages that a worker's cache does not hold."""
        conversation = self._agents[asked.conversation].conversation
        return Page(messages=conversation.view_page(asked.since, asked.count, limits.PAGE_BYTES))

    def input(self, key: str) -> RunInput:
        """The input of an agent's newest turn, with its messages where they are few: `input_messages` gives any."""
        run_input = self._agents[key].input
        assert run_input is not None
        is_small = len(fitting(run_input.messages, limits.INPUT_BYTES)) == len(run_input.messages)
        return run_input if is_small else run_input.model_copy(update={"messages": []})

    def input_messages(self, asked: PageRequest) -> Page:
        """The messages of that input, without its prompt."""
        run_input = self._agents[asked.conversation].input
        assert run_input is not None
        messages = run_input.messages[asked.since : asked.since + asked.count]
        return Page(messages=fitting(messages, limits.PAGE_BYTES))

    def definition(self, key: str) -> Definition:
        """What the provider is told of an agent, as it was pinned when the turn opened."""
        return self._agents[key].facts.definition
