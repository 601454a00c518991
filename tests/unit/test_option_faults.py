"""Options of tools that features add: each value that cannot work is one sentence when the tool is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import JsonValue

from mulligan import Agent, AgentFeature, DeclarationError, McpServer, Tool, tool
from mulligan.errors import InvalidActivityResultError
from mulligan.feature import Feature, FeatureParts, ToolOption, Traits
from mulligan.features.once import OnceOption
from mulligan.worker.declaration_warnings import declaration_warnings
from mulligan.worker.loading import load_agents
from mulligan.workflows.approvals.approvals import Approvals
from mulligan.workflows.deferred.deferred import Deferred
from mulligan.workflows.feature_facts import check_feature_facts
from mulligan.workflows.guarded.guarded import Guarded
from mulligan.workflows.once.once import Once
from mulligan.workflows.undo.undo import Undo
from tests.support.quiet_hours.declared import Quiet, QuietHours

NOT_TIMES = ["1h", float("nan"), float("inf"), True, -1, 0, 10**30, 1e20, timedelta(0), [1], object()]


@dataclass(frozen=True, kw_only=True)
class Slot(ToolOption):
    """An option of a feature of this module."""

    feature: ClassVar[str] = "slots"
    key: str = ""
    on: bool = True
    said: Traits = field(default_factory=Traits)
    pins: Any = None
    raises: Any = None

    def faults(self, tool: Tool) -> dict[str, bool]:
        if self.raises is not None:
            raise self.raises
        return {}

    def pin(self, tool: Tool, agent: Agent) -> JsonValue:
        return self.pins() if callable(self.pins) else super().pin(tool, agent)

    @classmethod
    def warnings(cls, agent: Agent) -> list[str]:
        return [f"{agent.name} has a slot"]

    @property
    def traits(self) -> Traits:
        return self.said


@dataclass(frozen=True, kw_only=True)
class OtherSlot(Slot):
    """Another class of the same feature."""


@dataclass(frozen=True, kw_only=True)
class NoGuard(ToolOption):
    """It would replace what a feature of Mulligan pins."""

    feature: ClassVar[str] = "guarded"


class InRuns(Feature):
    """It does nothing."""

    feature = "slots"


@dataclass(frozen=True)
class Slots(AgentFeature):
    """The feature of the slots."""

    parts: ClassVar[FeatureParts] = FeatureParts("slots", workflow=InRuns)


@dataclass(frozen=True, kw_only=True)
class Undefaulted(ToolOption):
    """A field without a default."""

    hours: int


class Plain(ToolOption):
    """No dataclass."""

    def __init__(self, hours: int) -> None:
        self.hours = hours


def work(text: str) -> str:
    """Work."""
    return text


def by_decorator(**options: Any) -> Tool:
    return tool(**options)(work)


def by_schema(**options: Any) -> Tool:
    schema = {"type": "object", "properties": {}}
    return Tool.from_schema(name="work", description="Work.", schema=schema, call=lambda *_: "", **options)


BOTH = pytest.mark.parametrize("declare", [by_decorator, by_schema])


@BOTH
@pytest.mark.parametrize(
    "keyword", ["timeout", "queue_timeout", "approval_timeout", "approval_reminder", "deferred_timeout"]
)
def test_what_is_no_time_is_refused_by_the_name_of_its_option(declare: Callable[..., Tool], keyword: str) -> None:
    for value in NOT_TIMES:
        given = {keyword: value, **({"deferred": True} if keyword == "deferred_timeout" else {"needs_approval": True})}
        with pytest.raises(DeclarationError, match=rf"tool 'work': {keyword} must be .*, but is "):
            declare(**given)


@pytest.mark.parametrize("keyword", ["timeout", "start_timeout", "approval_timeout"])
def test_what_is_no_time_is_refused_for_a_server(keyword: str) -> None:
    for value in NOT_TIMES:
        given: Any = {keyword: value}
        with pytest.raises(DeclarationError, match=rf"MCP server 's': {keyword} must be "):
            McpServer("s", command=["run"], **given)


NO_TYPE: Any = "no type at all"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"undo": lambda a, r, c: None, "undo_attempts": 10**30}, "undo_attempts must be a whole number from 1 to"),
    ({"deferred": True, "on_cancel": lambda: None}, "on_cancel must be a function of"),
    ({"deferred": True, "result_type": "no type at all"}, "result_type must be a type"),
    ({"deferred": True, "result_type": list[NO_TYPE]}, "result_type must be a type"),
    ({"options": "text"}, "options must be ToolOptions, but has 'text'"),
    ({"options": [Slot, 1]}, "options must be ToolOptions"),
    ({"options": [Undefaulted(hours=1)]}, "the field 'hours' of the option Undefaulted has no default"),
    ({"options": [Plain(1)]}, "Plain is no dataclass"),
    ({"options": [NoGuard()]}, "NoGuard says that it is of Mulligan's own feature 'guarded'"),
    ({"options": [Slot(), OtherSlot()]}, "more than one of the feature 'slots'"),
    ({"once": True, "options": [OnceOption()]}, "more than one of the feature 'once'"),
    ({"options": [Slot(on="yes")]}, "on must be True or False, but is 'yes'"),  # type: ignore[arg-type]
    ({"options": [Slot(raises=ValueError("no"))]}, "the option Slot cannot be checked: ValueError: no"),
    ({"options": [Slot(said=Traits(policy="no such role!"))]}, "policy must be True, False"),
    (
        {"needs_approval": "chief", "options": [Slot(said=Traits(policy=lambda a, c: False))]},
        "two of its options say who is asked",
    ),
    ({"needs_approval": True, "options": [Slot(said=Traits(is_question=True))]}, "a question to a person"),
    ({"local": True, "options": [Slot(said=Traits(ends_elsewhere=True))]}, "starts something elsewhere"),
    ({"options": [Quiet(seconds=-1)]}, "Quiet: seconds must be 0 or more, but is -1"),
    ({"options": [Quiet(seconds="x")]}, "Quiet: seconds must be 0 or more, but is 'x'"),  # type: ignore[arg-type]
    ({"local": True, "options": [Quiet(seconds=1)]}, "a local tool does not wait"),
]


@BOTH
@pytest.mark.parametrize(("given", "says"), WRONG, ids=[f"{n}: {says}" for n, (_, says) in enumerate(WRONG)])
def test_an_option_that_cannot_work_is_one_sentence(
    declare: Callable[..., Tool], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(DeclarationError, match="tool 'work': ") as refused:
        declare(**given)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("pins", "says"), [(lambda: timedelta(1), "no JSON value"), (lambda: 1 / 0, "cannot be pinned: ZeroDivisionError")]
)
def test_what_cannot_be_pinned_is_refused_with_the_agent(pins: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        Agent(name="a", model="openai:x", tools=[tool(options=[Slot(pins=pins)])(work)], features=[Slots()])


def test_a_feature_of_ones_own_has_a_name_of_its_own() -> None:
    class Guarding(AgentFeature):
        parts = FeatureParts("guarded")

    with pytest.raises(DeclarationError, match="the name of Mulligan's own feature 'guarded'"):
        Agent(name="a", model="openai:x", features=[Guarding()])


@pytest.mark.parametrize(
    ("option", "pinned"),
    [
        (Slot(), None),
        (Slot(on=False), {"on": False}),
        (Slot(key="k", on=False), {"key": "k", "on": False}),
        (OnceOption(once="step"), "step"),
    ],
)
def test_what_is_set_is_pinned_also_if_it_is_false(option: ToolOption, pinned: object) -> None:
    declared = tool(work)
    assert option.pin(declared, Agent(name="a", model="openai:x", tools=[declared])) == pinned


def test_the_warnings_of_ones_own_options_are_told() -> None:
    agent = Agent(name="a", model="openai:x", tools=[tool(options=[Slot()])(work)], features=[Slots()])
    assert "a has a slot" in declaration_warnings(load_agents([agent], []).registry)


def test_a_person_who_is_asked_by_ones_own_option_has_the_times_of_the_tool() -> None:
    given = tool(options=[Quiet(seconds=1, wakes_person=True)], approval_timeout=50)(work)
    agent = Agent(name="a", model="openai:x", tools=[given], features=[QuietHours()])
    pins = {each.name: each.pin(given, agent) for each in given.options}
    assert pins == {"quiet_hours": {"seconds": 1, "wakes_person": True}, "approvals": {"timeout": 50.0}}


@pytest.mark.parametrize(
    ("feature", "pinned"),
    [
        (Approvals, {"timeout": "5"}),
        (Guarded, "false"),
        (Undo, "3"),
        (Undo, True),
        (Once, 1),
        (Deferred, {"timeout": "3"}),
    ],
)
def test_what_is_pinned_is_of_its_type_without_conversion(feature: type[Feature], pinned: Any) -> None:
    """Features read what was pinned as it stands: a text in the place of a number would stop the run's workflow tasks."""
    name = feature.feature
    facts: Any = SimpleNamespace(features={}, tools={"work": SimpleNamespace(features={name: pinned})})
    with pytest.raises(InvalidActivityResultError, match=rf"'open_run' cannot be used: {name}"):
        check_feature_facts([feature], facts, "open_run")  # type: ignore[list-item]
