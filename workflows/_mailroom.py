"""Who answers the worker's questions: every workflow that holds a `DurableAgent` has these queries."""

from __future__ import annotations

from typing import Protocol

from temporalio import workflow

from mulligan.handoff import DEFINITION_QUERY, INPUT_QUERY, AgentFacts, Definition
from mulligan.reference import CONVERSATION_QUERY, INPUT_MESSAGES_QUERY, Page, PageAsked
from mulligan.values import RunInput
from workflows import policies
from workflows.conversation import Conversation, fitting


class Correspondent(Protocol):
    """Whom workers ask about: an agent of the workflow."""

    conversation: Conversation
    input: RunInput | None

    @property
    def facts(self) -> AgentFacts:
        """What was pinned when its turn opened."""
        ...


class Mailroom:
    """The agents of one workflow by their key, and the query handlers through which workers read them."""

    def __init__(self) -> None:
        self._agents: dict[str, Correspondent] = {}

    @classmethod
    def of_this_workflow(cls) -> Mailroom:
        """The one of the workflow that is running: the SDK keeps it for us, as its queries' handler."""
        handler = workflow.get_query_handler(CONVERSATION_QUERY)
        if handler is not None:
            mailroom = handler.__self__  # type: ignore[attr-defined]
            assert isinstance(mailroom, Mailroom)
            return mailroom
        mailroom = cls()
        workflow.set_query_handler(CONVERSATION_QUERY, mailroom.conversation)
        workflow.set_query_handler(INPUT_QUERY, mailroom.input)
        workflow.set_query_handler(INPUT_MESSAGES_QUERY, mailroom.input_messages)
        workflow.set_query_handler(DEFINITION_QUERY, mailroom.definition)
        return mailroom

    def register(self, agent: Correspondent) -> str:
        """Give an agent its key: its number in the workflow, the same after replay and continue-as-new."""
        key = str(len(self._agents))
        self._agents[key] = agent
        return key

    def conversation(self, asked: PageAsked) -> Page:
        """Messages that a worker's cache does not hold."""
        conversation = self._agents[asked.conversation].conversation
        return Page(messages=conversation.view_page(asked.since, asked.count, policies.PAGE_BYTES))

    def input(self, key: str) -> RunInput:
        """The input of an agent's newest turn, with its messages where they are few: `input_messages` gives any."""
        run_input = self._agents[key].input
        assert run_input is not None
        is_small = len(fitting(run_input.messages, policies.INPUT_BYTES)) == len(run_input.messages)
        return run_input if is_small else run_input.model_copy(update={"messages": []})

    def input_messages(self, asked: PageAsked) -> Page:
        """The messages of that input, without its prompt."""
        run_input = self._agents[asked.conversation].input
        assert run_input is not None
        messages = run_input.messages[asked.since : asked.since + asked.count]
        return Page(messages=fitting(messages, policies.PAGE_BYTES))

    def definition(self, key: str) -> Definition:
        """What the provider is told of an agent, as it was pinned when the turn opened."""
        return self._agents[key].facts.definition
