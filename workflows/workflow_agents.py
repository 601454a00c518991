"""The agents of one workflow, and the handlers through which workers query them and people reach them."""

from __future__ import annotations

from temporalio import workflow

from mulligan.wire.agent_facts import DEFINITION_QUERY, INPUT_QUERY, Definition
from mulligan.wire.agent_version import VERSION_QUERY, AgentVersion, VersionRequest
from mulligan.wire.conversation_ref import (
    CONVERSATION_QUERY,
    INPUT_MESSAGES_QUERY,
    REQUEST_QUERY,
    Page,
    PageRequest,
)
from mulligan.wire.start_input import StartInput
from mulligan.workflows import limits
from mulligan.workflows.agent_queries import AgentQueries
from mulligan.workflows.conversation.conversation import messages_that_fit
from mulligan.workflows.current_details import current_details, show_details
from mulligan.workflows.features import FEATURE_CLASSES, installed
from mulligan.workflows.people.decision_handlers import DecisionHandlers
from mulligan.workflows.people.update_handlers import UpdateHandlers
from mulligan.workflows.running_agent import RunningAgent


class WorkflowAgents:
    """The agents of one workflow by their keys, its update handlers, and the query handlers for workers."""

    def __init__(self) -> None:
        self._agents: dict[str, RunningAgent] = {}
        self.queries = AgentQueries(self._agents)
        self.handlers = UpdateHandlers(self._name_of)
        DecisionHandlers(self)
        for feature in (*FEATURE_CLASSES, *installed().loaded.values()):
            feature.listen(self)

    @classmethod
    def of_this_workflow(cls) -> WorkflowAgents:
        """The registry of the running workflow, created at the first call. The SDK keeps it, as a query's handler."""
        handler = workflow.get_query_handler(CONVERSATION_QUERY)
        if handler is not None:
            workflow_agents = handler.__self__  # type: ignore[attr-defined]
            assert isinstance(workflow_agents, WorkflowAgents)
            return workflow_agents
        workflow_agents = cls()
        workflow.set_query_handler(CONVERSATION_QUERY, workflow_agents.conversation)
        workflow.set_query_handler(INPUT_QUERY, workflow_agents.input)
        workflow.set_query_handler(INPUT_MESSAGES_QUERY, workflow_agents.input_messages)
        workflow.set_query_handler(REQUEST_QUERY, workflow_agents.request)
        workflow.set_query_handler(DEFINITION_QUERY, workflow_agents.definition)
        workflow.set_query_handler(VERSION_QUERY, workflow_agents.version)
        workflow_agents.queries.set_handlers()
        show_details(lambda: current_details(workflow_agents._agents, workflow_agents.handlers.pending()))
        return workflow_agents

    def add(self, name: str, state: bytes | None) -> RunningAgent:
        """Add an agent; with `state`, the agent that an earlier workflow run has carried over.

        Its key is its number in the workflow, the same after replay and continue-as-new.

        Raises:
            InvalidStateError: the state is none.
        """
        key = str(len(self._agents))
        agent = RunningAgent(name, key, self.handlers.inbox(key), state)
        self._agents[key] = agent
        return agent

    def agent(self, key: str) -> RunningAgent:
        """The agent with a key."""
        return self._agents[key]

    def all_agents(self) -> list[RunningAgent]:
        """All of them, in the order of their keys."""
        return list(self._agents.values())

    def find(self, key: str) -> RunningAgent | None:
        """The agent with a key; None if it does not exist yet."""
        return self._agents.get(key)

    def _name_of(self, key: str) -> str:
        return self._agents[key].name if key in self._agents else ""

    def conversation(self, request: PageRequest) -> Page:
        """Messages of an agent's view that a worker's cache does not have."""
        conversation = self._agents[request.conversation].conversation
        return Page(messages=conversation.view_page(request.since, request.count, limits.PAGE_BYTES))

    def input(self, key: str) -> StartInput:
        """The input of an agent's newest turn. Without its messages if they are large: `input_messages` has them."""
        run_input = self._agents[key].input
        assert run_input is not None
        run_input = run_input.for_opening
        is_small = len(messages_that_fit(run_input.messages, limits.INPUT_BYTES)) == len(run_input.messages)
        return run_input if is_small else run_input.model_copy(update={"messages": []})

    def input_messages(self, request: PageRequest) -> Page:
        """The messages of that input, without its prompt."""
        run_input = self._agents[request.conversation].input
        assert run_input is not None
        messages = run_input.messages[request.since : request.since + request.count]
        return Page(messages=messages_that_fit(messages, limits.PAGE_BYTES))

    def request(self, key: str) -> str:
        """The text of the user's message that an agent's newest turn has begun with."""
        return self._agents[key].conversation.request_text

    def version(self, request: VersionRequest) -> AgentVersion:
        """The version of an agent's file that its conversation works by, as it was pinned."""
        facts = self._agents[request.conversation].turn.facts_of(request.agent)
        assert facts is not None
        assert facts.version is not None
        return facts.version

    def definition(self, key: str) -> Definition:
        """The definition of an agent for the provider, as it was pinned when the turn opened."""
        return self._agents[key].facts.definition
