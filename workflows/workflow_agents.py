"""The agents of one workflow, and the handlers through which workers query them and people reach them."""

from __future__ import annotations

from typing import Any, Protocol

from temporalio import workflow

from mulligan.run_input import RunInput
from mulligan.values import ToolCall
from mulligan.wire.agent_facts import DEFINITION_QUERY, INPUT_QUERY, AgentFacts, Definition
from mulligan.wire.conversation_ref import CONVERSATION_QUERY, INPUT_MESSAGES_QUERY, Page, PageRequest
from mulligan.wire.questions import CheckAnswer, CheckedAnswer, Question
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import digest_of_call
from mulligan.wire.updates import CheckedEdit, CheckEdit
from mulligan.workflows import dispatch, limits
from mulligan.workflows.agent_queries import AgentQueries, QueriedAgent
from mulligan.workflows.agent_route import AgentRoute
from mulligan.workflows.background.response_handler import ResponseHandler
from mulligan.workflows.batch.batch_wait import listen_for_batches
from mulligan.workflows.conversation.conversation import messages_that_fit
from mulligan.workflows.current_details import current_details, show_details
from mulligan.workflows.deferred.complete_handler import CompleteHandler
from mulligan.workflows.people.update_handlers import UpdateHandlers

__all__ = ["WorkflowAgents"]


class RegisteredAgent(QueriedAgent, Protocol):
    """What the handlers need of an agent: the part of DurableAgent that they read."""

    input: RunInput | None
    route: AgentRoute

    @property
    def task(self) -> str:
        """What its turn was asked for, in one line."""
        ...

    @property
    def facts(self) -> AgentFacts:
        """What was pinned when its turn opened."""
        ...

    @property
    def context(self) -> RunContext:
        """What identifies it in the inputs of its activities."""
        ...


class WorkflowAgents:
    """The agents of one workflow by their keys, its update handlers, and the query handlers for workers."""

    def __init__(self) -> None:
        self._agents: dict[str, RegisteredAgent] = {}
        self.queries = AgentQueries(self._agents)
        self.handlers = UpdateHandlers(self._name_of, self._check_edited_arguments, self._check_answer)
        CompleteHandler(self.handlers.inboxes, self.handlers.answered, lambda: self.handlers.is_ready)
        listen_for_batches(self.handlers.inboxes)
        ResponseHandler(
            self.handlers.inboxes, self._trace_id_of, lambda: self.handlers.is_ready, self.handlers.until_ready
        )

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
        workflow.set_query_handler(DEFINITION_QUERY, workflow_agents.definition)
        workflow_agents.queries.set_handlers()
        show_details(lambda: current_details(workflow_agents._agents, workflow_agents.handlers.pending()))
        return workflow_agents

    def register(self, agent: RegisteredAgent) -> str:
        """Give an agent its key: its number in the workflow, the same after replay and continue-as-new."""
        key = str(len(self._agents))
        self._agents[key] = agent
        return key

    def _name_of(self, key: str) -> str:
        return self._agents[key].agent if key in self._agents else ""

    def _trace_id_of(self, key: str) -> str | None:
        agent = self._agents.get(key)
        return agent.context.trace.split("-")[1] if agent is not None and agent.has_begun else None

    async def _check_edited_arguments(
        self, key: str, call: ToolCall, step: int, arguments: dict[str, Any]
    ) -> CheckedEdit:
        """Have a worker of the agent check arguments that a person has edited."""
        agent = self._agents[key]
        return await dispatch.check_edit(
            CheckEdit(
                where=agent.context,
                call=call.model_copy(update={"arguments": ""}),
                arguments=arguments,
                step=step,
                definition=agent.facts.digest,
                metadata=agent.input.metadata if agent.input else {},
                digest=digest_of_call(call),
            ),
            agent.route,
        )

    async def _check_answer(self, key: str, question: Question, text: str) -> CheckedAnswer:
        """Have a worker of the agent check a person's answer to a question of an MCP server."""
        return await dispatch.check_answer(CheckAnswer(where=self._agents[key].context, question=question, text=text))

    def conversation(self, request: PageRequest) -> Page:
        """Messages of an agent's view that a worker's cache does not have."""
        conversation = self._agents[request.conversation].conversation
        return Page(messages=conversation.view_page(request.since, request.count, limits.PAGE_BYTES))

    def input(self, key: str) -> RunInput:
        """The input of an agent's newest turn. Without its messages if they are large: `input_messages` has them."""
        run_input = self._agents[key].input
        assert run_input is not None
        is_small = len(messages_that_fit(run_input.messages, limits.INPUT_BYTES)) == len(run_input.messages)
        return run_input if is_small else run_input.model_copy(update={"messages": []})

    def input_messages(self, request: PageRequest) -> Page:
        """The messages of that input, without its prompt."""
        run_input = self._agents[request.conversation].input
        assert run_input is not None
        messages = run_input.messages[request.since : request.since + request.count]
        return Page(messages=messages_that_fit(messages, limits.PAGE_BYTES))

    def definition(self, key: str) -> Definition:
        """What the provider is sent of an agent, as it was pinned when the turn opened."""
        return self._agents[key].facts.definition
