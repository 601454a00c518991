"""Remembers which tools the model has found, and carries out the calls of `find_tools`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, Field, TypeAdapter

from mulligan.features.tool_search import MOST_AT_ONCE
from mulligan.tool import FIND_TOOLS
from mulligan.values import AssistantMessage, Message
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.wire.resume_page import ResumeState
from mulligan.wire.tool_call import ToolOutcome
from mulligan.wire.tool_search import FindTools, SearchState, names_in, with_new
from mulligan.workflows import limits
from mulligan.workflows.feature import Feature
from mulligan.workflows.scheduling import Schedule
from mulligan.workflows.step_call import StepCall

if TYPE_CHECKING:
    from mulligan.workflows.running_agent import RunningAgent


class ToolSearchFacts(BaseModel):
    """`limit`: how many tools a search returns at most."""

    limit: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)]


_STATE = TypeAdapter(list[tuple[int, list[str]]])


class ToolSearch(Feature):
    """The tools that one agent's model has found, in that order; None: the conversation was not read yet.

    `_finds`: the same, by the steps in which they were found; 0: before this run's first step.
    """

    facts_type = ToolSearchFacts
    option_type = bool
    schedules: ClassVar = {FIND_TOOLS: Schedule(timeout=limits.CHECK_EDIT_TIMEOUT)}

    def __init__(self, agent: RunningAgent) -> None:
        super().__init__(agent)
        self._found: list[str] | None = None
        self._finds: list[tuple[int, list[str]]] = []

    async def answer(self, call: ModelCall, then: Callable[[ModelCall], Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Say in the request which tools were found. Without that, it would contain all tools."""
        said = SearchState(found=self._known()).model_dump(mode="json")
        return await then(call.model_copy(update={"features": {**call.features, self.feature: said}}))

    def begin_calls(self, calls: Sequence[StepCall]) -> None:
        """A tool that the model calls counts as found: its schema is in the call's error, or was guessed."""
        on_demand = [call.call.name for call in calls if self.feature in call.pinned]
        self._add(on_demand)

    async def run_call(self, call: StepCall, then: Callable[[StepCall], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Search for tools by an activity, in place of the tool's function."""
        facts = self.agent.pinned(self, ToolSearchFacts)
        if call.call.name != FIND_TOOLS or call.request is None or facts is None:
            return await then(call)
        most_bytes = limits.share_of_results(len(self.agent.calls), local=False)
        request = FindTools(
            **{**dict(call.request), "max_bytes": most_bytes},
            definition=self.agent.facts.digest,
            limit=facts.limit,
        )
        with self.agent.running(call):
            return await self.agent.activity(FIND_TOOLS, request, ToolOutcome, summary=FIND_TOOLS)

    async def accept(self, answer: ModelAnswer) -> None:  # noqa: ARG002
        """Add what the step's searches have found, whatever has carried them out, in the order of their calls."""
        conversation = self.agent.conversation
        for message in conversation.messages[conversation.steps[-1].at + 1 :]:
            self._add(names_in(message) or [])

    def keeps(self, message: Message) -> bool:
        """The result of a search is kept: a provider that defers tools reads it."""
        return names_in(message) is not None

    def _add(self, names: Sequence[str]) -> None:
        known, step = self._known(), self.agent.conversation.next_step - 1
        self._found = with_new(known, names)
        if self._found[: len(known)] != known:
            self._finds = [(step, self._found)]  # the older ones are forgotten
        elif new := self._found[len(known) :]:
            self._finds.append((step, new))

    def _known(self) -> list[str]:
        """The tools that were found; in a run that resumes or repeats another one, by its conversation."""
        if self._found is None:
            self._found, tools = [name for _, names in self._finds for name in names], self.agent.facts.tools
            for message in self.agent.conversation.messages:
                names = names_in(message) or []
                if isinstance(message, AssistantMessage):
                    called = [call.name for call in message.tool_calls]
                    names = [name for name in called if name in tools and self.feature in tools[name].features]
                self._found = with_new(self._found, names)
            self._finds = [(0, self._found)] if self._found else []
        return self._found

    def for_resume(self, state: ResumeState) -> None:
        """The tools that were found before the step of a fork, also by messages that a compaction has summarized."""
        if state.fork is not None:
            finds: list[Any] = [[step, names] for step, names in self._finds if step < state.fork.step]
            if finds:
                state.fork.features[self.feature], state.fork.edited[self.feature] = finds, {"finds": finds}

    def dump(self) -> list[Any] | None:
        """The names by steps, as JSON."""
        if self._found is None and not self._finds:
            return None
        self._known()
        return [[step, names] for step, names in self._finds]

    def load(self, state: Any) -> None:
        """Continue with what `dump` or a fork's state has.

        Raises:
            ValidationError: it is nothing of that form.
        """
        edited = isinstance(state, dict)
        self._finds = _STATE.validate_python(state["finds"] if edited else state)
        self._found = None if edited else [name for _, names in self._finds for name in names]
        if edited:  # what the conversation still has is read from it
            summarized = self.agent.conversation.first_step or -1
            self._finds = [each for each in self._finds if each[0] <= summarized]
