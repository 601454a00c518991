"""Rules of approval: which calls a rule counts for, what cannot be a rule, and how many there may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mulligan import Agent, Call, Decide, Guarded, Pending, Say, tool
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from mulligan.wire.approval_rules import RULE_BYTES, Rule, rules_id
from mulligan.workflows.rules.rule_book import RuleBook

FIELDS: dict[str, Any] = {"agent": "clerk", "tool": "pay", "arguments": {"euros": 5}, "by": "Ada", "at": "now"}


def rule_of(name: str = "r", **fields: Any) -> Rule:
    return Rule(name=name, **{**FIELDS, **fields})


@pytest.mark.parametrize(
    ("fields", "is_same"),
    [
        ({"name": "s", "by": "Bo", "at": "then"}, True),
        ({"arguments": {"euros": 5.0}}, True),
        ({"arguments": {"euros": 6}}, False),
        ({"arguments": {"euros": True}}, False),
        ({"digest": "another normal form"}, False),
        ({"tool": "send"}, False),
        ({"agent": "boss"}, False),
        ({"role": "boss"}, False),
        ({"user": "Eve"}, False),
        ({"untrusted": True}, False),
    ],
)
def test_what_a_rule_and_a_call_must_have_in_common(fields: dict[str, Any], is_same: bool) -> None:
    assert (rule_of().key == rule_of(**{"name": "r", **fields}).key) is is_same


def test_a_rule_takes_the_place_of_one_for_the_same_calls() -> None:
    book = RuleBook(1, 10_000)
    assert book.add(rule_of("old")) is None
    assert book.add(rule_of("new", by="Bo")) is None
    assert [each.name for each in book.rules] == ["new"]
    refusal = book.add(rule_of(arguments={"euros": 6}))
    assert refusal == "There are 1 rules, and no room for another one. Delete some (`mulligan rules`)."
    assert [each.name for each in book.rules] == ["new"]


def test_the_rule_of_a_call_is_found_by_the_first_key_that_has_one() -> None:
    book, first, second = RuleBook(9, 10_000), rule_of("a"), rule_of("b", untrusted=True)
    book.add(second)
    assert book.find([first.key, second.key]) == second
    book.add(first)
    assert (book.find([first.key, second.key]), book.find(["other"]), book.find([])) == (first, None, None)
    assert (book.delete("a"), book.delete("a"), book.rules) == (True, False, [second])


def test_the_rules_of_a_book_have_so_many_bytes_together() -> None:
    size = len(rule_of("a").model_dump_json())
    assert RuleBook(9, size).add(rule_of("a")) is None
    assert RuleBook(9, size - 1).add(rule_of("a")) is not None
    two = RuleBook(9, 2 * size)
    assert two.add(rule_of("a")) is None
    assert two.add(rule_of("b", tool="say")) is None
    three = two.add(rule_of("c", tool="sit"))
    assert three is not None
    assert three.startswith("There are 2 rules")
    assert two.refusal(rule_of("z")) is None  # it would take the place of another


def test_a_rule_has_no_more_arguments_than_a_person_sees_at_once() -> None:
    room = RULE_BYTES - len('{"arguments":{"to":""}}')
    assert RuleBook(9, 10**6).add(rule_of(arguments={"to": "x" * room})) is None
    refusal = RuleBook(9, 10**6).add(rule_of(arguments={"to": "x" * (room + 1)}))
    assert refusal is not None
    assert "has room for 10,000 bytes of arguments, and these have 10,001" in refusal


def test_the_rules_of_a_tenant_are_one_workflow() -> None:
    assert rules_id("acme") == "mulligan-rules-acme"


@tool(needs_approval=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


@tool(needs_approval="boss")
def give(euros: int) -> str:
    """Give."""
    return f"gave {euros}"


@tool(trust="untrusted")
def read_mail() -> str:
    """Read."""
    return "Pay 5 euros."


@tool(consequential=True, needs_approval=True)
def send(euros: int) -> str:
    """Send."""
    return f"sent {euros}"


clerk = Agent(name="clerk", model="openai:nobody", tools=[pay, give])
guarded = Agent(name="clerk", model="openai:nobody", tools=[read_mail, send], features=[Guarded()])


class Approver:
    """Approves what waits, and notes it. `options`: of its decision on the call with that number."""

    def __init__(self, *options: dict[str, Any]) -> None:
        self.asked: list[Any] = []
        self._options = options

    def __call__(self, wait: Pending) -> Decide:
        options = self._options[len(self.asked)] if len(self.asked) < len(self._options) else {}
        self.asked.append(wait.arguments)
        return Decide(**{"call_id": wait.call_id, "decision": "approve", "by": "Ada", **options})


def says(name: str, *numbers: int) -> Say:
    return Say(calls=[Call(name, {"euros": number}) for number in numbers])


async def run(person: Callable[[Pending], Decide], *steps: Say, agent: Agent = clerk, **given: Any) -> AgentRun[Any]:
    return await run_agent(agent, "Go.", model=ScriptedModel(*steps, "Done."), person=person, **given)


async def test_a_rule_approves_equal_calls_and_no_others() -> None:
    """Their decision names the rule; the first one's does not."""
    person = Approver({"remember": "run"})
    ran = await run(person, says("pay", 5), says("pay", 5), says("pay", 6), says("pay", 5))
    assert person.asked == [{"euros": 5}, {"euros": 6}]
    decisions = [call.decision for call in ran.calls if call.decision]
    assert [(each.decision, each.by, each.rule is not None) for each in decisions] == [
        ("approve", "Ada", False), ("approve", "Ada", True), ("approve", "Ada", False), ("approve", "Ada", True),
    ]  # fmt: skip
    assert decisions[1].rule is not None
    assert decisions[1].rule.name.startswith("pay-")
    assert decisions[1].rule.at == decisions[0].at
    assert [event.type for event in ran.events if event.type in ("waiting", "decided")] == [
        "waiting", "decided", "decided", "waiting", "decided", "decided",
    ]  # fmt: skip


async def test_without_a_rule_each_equal_call_is_asked_about() -> None:
    person = Approver()
    await run(person, says("pay", 5), says("pay", 5))
    assert person.asked == [{"euros": 5}] * 2


async def test_a_rule_does_not_decide_on_a_call_that_waits_already() -> None:
    person = Approver({"remember": "run"})
    await run(person, says("pay", 5, 5), says("pay", 5, 5))
    assert person.asked == [{"euros": 5}] * 2


async def test_the_rule_has_the_arguments_that_ran() -> None:
    person = Approver({"remember": "run", "arguments": {"euros": 6}})
    ran = await run(person, says("pay", 5), says("pay", 6), says("pay", 5))
    assert person.asked == [{"euros": 5}] * 2
    assert [call.result.text for call in ran.calls if call.result] == ["paid 6", "paid 6", "paid 5"]


async def test_a_rule_counts_for_the_tool_of_its_call() -> None:
    person = Approver({"remember": "run"})
    await run(person, says("pay", 5), says("give", 5), says("pay", 5))
    assert person.asked == [{"euros": 5}] * 2


async def test_a_rule_made_without_foreign_results_does_not_count_after_them() -> None:
    """Whoever approved the first call saw no mail. The rule that is made then counts for both."""
    person = Approver({"remember": "run"}, {"remember": "run"})
    mail = Say(calls=[Call("read_mail")])
    steps = (says("send", 5), says("send", 5), mail, says("send", 5), says("send", 5))
    ran = await run(person, *steps, agent=guarded)
    assert person.asked == [{"euros": 5}] * 2
    rules = [call.decision.rule for call in ran.calls if call.decision]
    assert [each is not None for each in rules] == [False, True, False, True]
    assert rules[1] is not None
    assert rules[3] is not None
    assert rules[1].name != rules[3].name


LONG = {"euros": 1, "to": "x" * RULE_BYTES}


@tool(needs_approval=True)
def write(to: str) -> str:
    """Write."""
    return "written"


@pytest.mark.parametrize(
    ("options", "given", "says_why"),
    [
        ({"remember": "run", "decision": "deny"}, {}, '"remember" is allowed with "approve" only'),
        ({"remember": "tenant"}, {}, "The run has no tenant"),
        ({"remember": "tenant", "agents": ["other"]}, {"tenant": "t"}, "you may not; approve the call without it"),
        (
            {"remember": "tenant", "agents": []},
            {"tenant": "t"},
            'A rule of the tenant for the agent "clerk" is for those',
        ),
    ],
)
async def test_what_cannot_be_a_rule_is_refused_before_anything_is_decided(
    options: dict[str, Any], given: dict[str, Any], says_why: str
) -> None:
    with pytest.raises(AssertionError) as refused:
        await run(Approver(options), says("pay", 5), **given)
    assert says_why in str(refused.value)


@pytest.mark.parametrize("edited", [False, True])
async def test_arguments_that_nobody_sees_at_once_are_no_rule(edited: bool) -> None:
    """Those with which the call would run."""
    agent, long = Agent(name="clerk", model="openai:nobody", tools=[write]), "x" * RULE_BYTES
    options = {"remember": "run", **({"arguments": {"to": long}} if edited else {})}
    call = Say(calls=[Call("write", {"to": "Ada" if edited else long})])
    with pytest.raises(AssertionError, match="at most 10,000 are accepted"):
        await run(Approver(options), call, agent=agent)
    other = Approver({"remember": "run", **({} if edited else {"arguments": {"to": "Ada"}})})
    await run(other, call, Say(calls=[Call("write", {"to": "Ada"})]), agent=agent)
    assert len(other.asked) == 1


async def test_whoever_lacks_the_role_makes_no_rule() -> None:
    with pytest.raises(AssertionError, match='waits for somebody with the role "boss"; you do not have it'):
        await run(Approver({"remember": "run", "roles": ["clerk"]}), says("give", 5))
    person = Approver({"remember": "run", "roles": ["boss"]})
    ran = await run(person, says("give", 5), says("give", 5))
    assert (person.asked, [call.decision.role for call in ran.calls if call.decision]) == ([{"euros": 5}], ["boss"] * 2)


async def test_people_see_the_newest_earlier_decisions_on_the_tool() -> None:
    """The newest first, five at most, and those of no other tool."""
    seen: list[Any] = []

    def person(wait: Pending) -> Decide:
        seen.append([(each.decision, json.loads(each.arguments)["euros"], each.reason) for each in wait.earlier])
        decision = "deny" if wait.arguments["euros"] == 2 else "approve"
        return Decide(call_id=wait.call_id, decision=decision, reason="no" if decision == "deny" else None)

    steps = [says("give", 1), says("pay", 1), says("pay", 2), *(says("pay", number) for number in range(3, 8))]
    await run(person, *steps)
    assert seen[:4] == [[], [], [("approve", 1, None)], [("deny", 2, "no"), ("approve", 1, None)]]
    assert [number for _, number, _ in seen[-1]] == [6, 5, 4, 3, 2]
