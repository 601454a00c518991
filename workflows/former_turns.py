"""The turns of an agent before its newest one: what a fork at one of their steps needs, and what all of them have used."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

from mulligan.values import Spent
from mulligan.wire.agent_facts import AgentFacts
from mulligan.workflows.turn import Turn

Model = TypeVar("Model", bound=BaseModel)


class FormerTurns:
    """The former turns, oldest first. Those whose steps another run holds are only summed up.

    Agents with hundreds of turns have most of their facts in common, so these are in memory, and in what continue-as-new
    carries, once: there, the facts of each turn's agents are what differs from those of the next turn with that agent.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._before: Spent | None = None
        """What the turns before the first of `turns` have used."""

    @property
    def used(self) -> list[Spent]:
        """What the turns have used: of the oldest ones in one sum."""
        return [*([self._before] if self._before is not None else []), *(turn.used for turn in self.turns)]

    def add(self, turn: Turn, newest: Turn) -> None:
        """Add the turn before `newest`, without its output, which its result's reader has got."""
        newest.facts = _shared_facts(newest.facts, turn.facts_of(newest.input.agent) or turn.facts)
        self.turns.append(turn.model_copy(update={"result": turn.result.model_copy(update={"output": None})}))

    def dump(self, newest: Turn, first_step: int) -> dict[str, Any] | None:
        """The turns as JSON; None if there is none.

        Args:
            newest: The newest turn.
            first_step: How many steps of the conversation the next run does not have: their turns are summed up.
        """
        turns, before = self.turns, self._before
        ends = [turn.first_step - 1 for turn in (*turns[1:], newest)]
        dropped = sum(end <= first_step for end in ends)
        for turn in turns[:dropped]:
            before = turn.used if before is None else before + turn.used
        if before is None and not turns:
            return None
        known, kept = _facts_by_agent(newest), []
        for turn in reversed(turns[dropped:]):
            different = {}
            for name, facts in _facts_by_agent(turn).items():
                different[name] = _difference(facts, known.get(name, newest.facts))
                known[name] = facts
            kept.append({**turn.model_dump(mode="json", exclude={"facts", "pinned"}), "facts": different})
        return {"before": before.model_dump(mode="json") if before else None, "turns": kept[::-1]}

    def load(self, state: dict[str, Any], newest: Turn) -> None:
        """Continue with what `dump` returned."""
        self._before = Spent.model_validate(state["before"]) if state["before"] else None
        known = _facts_by_agent(newest)
        for turn in reversed(state["turns"]):
            names = turn["facts"]
            for name, difference in names.items():
                known[name] = _with_difference(known.get(name, newest.facts), difference)
            pinned = {name: known[name] for name in names}
            facts = pinned.pop(turn["input"]["agent"])
            self.turns.insert(0, Turn.model_validate({**turn, "facts": facts, "pinned": pinned}))


def _facts_by_agent(turn: Turn) -> dict[str, AgentFacts]:
    """The facts of the agents that had the conversation of a turn, by their names."""
    return {turn.input.agent: turn.facts, **turn.pinned}


def _with_difference(facts: AgentFacts, difference: dict[str, Any]) -> AgentFacts:
    """The facts from which `_difference` to `facts` was written."""
    if not difference:
        return facts
    written = facts.model_dump(mode="json")
    definition = {**written["definition"], **difference.get("definition", {})}
    return _shared_facts(AgentFacts.model_validate({**written, **difference, "definition": definition}), facts)


def _equal_fields(value: BaseModel, other: BaseModel) -> list[str]:
    return [name for name in type(value).model_fields if getattr(value, name) == getattr(other, name)]


def _shared(value: Model, other: Model) -> Model:
    """The value with the equal fields of another one."""
    return value.model_copy(update={name: getattr(other, name) for name in _equal_fields(value, other)})


def _shared_facts(facts: AgentFacts, other: AgentFacts) -> AgentFacts:
    definition = _shared(facts.definition, other.definition)
    return _shared(facts, other).model_copy(update={"definition": definition})


def _difference(facts: AgentFacts, other: AgentFacts) -> dict[str, Any]:
    """The fields of facts that differ from another one's, as JSON; those of the definition alike."""
    own = _left(facts, other, {"definition"})
    definition = _left(facts.definition, other.definition, set())
    return {**own, "definition": definition} if definition else own


def _left(value: BaseModel, other: BaseModel, without: set[str]) -> dict[str, Any]:
    fields = type(value).model_fields
    names = fields.keys() - {*_equal_fields(value, other), *without}
    written = value.model_dump(mode="json", include=names)
    # A field with its default is not written, but the other one's differs.
    return {name: written.get(name, fields[name].get_default(call_default_factory=True)) for name in sorted(names)}
