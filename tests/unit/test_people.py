"""People, without a server: the examples of docs/people.md, edits, timeouts, and decisions that are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field
from temporalio import workflow

from mulligan import Agent, Answer, Approvals, Call, Decide, Pending, Say, ToolCall, tool
from mulligan.activities.answers.prepare_call import valid
from mulligan.activities.check_edit import _faults
from mulligan.cli.pending import HEADINGS, _cells
from mulligan.errors import DeclarationError, UpdateRefusedError
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from mulligan.tools import ask_person
from mulligan.wire.parse_update import parse_update
from mulligan.wire.updates import Stop
from mulligan.workflows import running_agent
from mulligan.workflows.features import FEATURE_CLASSES
from mulligan.workflows.people.person_wait import PersonWait

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> str:
    """The Python of a page, as one module."""
    return "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL))


@tool(needs_approval=True, approval_timeout=60)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


clerk = Agent(name="clerk", model="openai:gpt-5-mini", tools=[pay, ask_person])


async def test_the_examples_of_the_people_pages_pass() -> None:
    people: dict[str, Any] = {"__name__": "people"}
    rules: dict[str, Any] = {"__name__": "rules"}
    exec(compile(blocks("people.md"), "docs/people.md", "exec", dont_inherit=True), people)
    exec(compile(blocks("approval-rules.md"), "docs/approval-rules.md", "exec", dont_inherit=True), rules)
    assert {"test_ada_is_asked", "buyer"} <= people.keys()
    await people["test_ada_is_asked"]()
    await rules["test_ada_is_reminded_until_the_time_limit"]()


def edits(wait: Pending) -> Decide:
    return Decide(call_id=wait.call_id, decision="approve", arguments={"euros": 5})


async def asks(wait: Pending) -> Decide:
    return Decide(call_id=wait.call_id, decision="approve", arguments={"euros": "many"})


def mistakes(wait: Pending) -> Answer:
    return Answer(call_id=wait.call_id, text="yes")


def says_nothing(wait: Pending) -> None:
    return None


async def run_payer(person: Any) -> AgentRun:
    return await run_agent(
        clerk, "Pay.", model=ScriptedModel(Say(calls=[Call("pay", {"euros": 7})]), "Done."), person=person
    )


async def test_an_edited_call_runs_with_the_new_arguments() -> None:
    run = await run_payer(edits)
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == "paid 5"
    assert run.calls[0].decision is not None
    assert run.calls[0].decision.before == {"euros": 7}


async def test_without_a_decision_the_timeout_passes_at_once() -> None:
    """There is no server, so no clock to wait for."""
    run = await run_payer(says_nothing)
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == "`pay` was not run: nobody approved of it in time."


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_without_the_feature_for_approvals_a_call_waits_all_the_same(
    decision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs that people must be asked about, whatever features a worker has."""
    without = tuple(each for each in FEATURE_CLASSES if each.feature != "approvals")
    assert len(without) == len(FEATURE_CLASSES) - 1
    monkeypatch.setattr(running_agent, "FEATURE_CLASSES", without)
    asked: list[str] = []

    def decides(wait: Pending) -> Decide:
        asked.append(wait.tool)
        return Decide(call_id=wait.call_id, decision=decision)

    run = await run_payer(decides)
    assert asked == ["pay"]
    assert run.calls[0].result is not None
    assert (run.calls[0].result.text == "paid 7") is (decision == "approve")


@pytest.mark.parametrize(("person", "says"), [(asks, "euros"), (mistakes, 'use the update "decide"')])
async def test_an_invalid_decision_fails_the_test(person: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        await run_payer(person)


@pytest.mark.parametrize("field", ["reason", "by"])
def test_an_overlong_reason_is_refused_with_its_number_of_characters(field: str) -> None:
    with pytest.raises(UpdateRefusedError) as refused:
        parse_update(Stop, {field: "x" * 1_001})
    assert refused.value.message == f'"{field}" has 1,001 characters; at most 1,000 are accepted.'


def test_the_table_of_waiting_calls_says_what_each_needs() -> None:
    """How it is laid out: tests/system/features/test_narrow_terminal.py."""
    since = "2026-11-22T12:04:00.000+00:00"
    call = {"id": "refund-2026-11-22-a7f3", "agent": "clerk", "call_id": "call_1", "tool": "refund", "since": since}
    asks = {**call, "kind": "question", "tool": "ask_person", "text": "Which of the two lamps is it, the green one?"}
    approval = {**call, "kind": "approval", "text": 'refund {"order": 7, "euros": 12.5}'}
    rows = [[cell.plain for cell in _cells(each)] for each in (approval, asks, {**asks, "kind": "new"})]
    assert HEADINGS == ("run", "waits", "call", "since (UTC)", "what")
    assert rows[0] == [
        *("refund-2026-11-22-a7f3", "needs approval", "call_1", "11-22 12:04"),
        'clerk: refund {"order": 7, "euros": 12.5}',
    ]
    assert (rows[1][1], rows[2][1]) == ("asks", "new")


def test_an_argument_of_very_many_fields_is_refused_before_it_is_validated() -> None:
    with pytest.raises(UpdateRefusedError, match="has 5,000 fields; at most 100"):
        parse_update(Stop, {f"k{number}": 1 for number in range(5_000)})


REMINDS = 3600.0


def reminders(run: AgentRun) -> list[tuple[str, int, float]]:
    """Kind, number, and the hours from the beginning of the wait, of each reminder."""
    asked = next(event.at for event in run.events if event.type == "waiting")
    return [
        (event.kind, event.number, (event.at - asked).total_seconds() / REMINDS)
        for event in run.events
        if event.type == "reminder"
    ]


async def test_reminders_of_approvals_and_questions_come_at_doubling_intervals_ten_at_most() -> None:
    """They are the agent's, unless the tool has its own; without either there are none."""

    @tool(needs_approval=True, approval_timeout=10_000 * REMINDS)
    def wire(euros: int) -> str:
        """Pay by wire."""
        return "paid"

    @tool(asks_person=True, approval_timeout=4 * REMINDS, approval_reminder=2 * REMINDS)
    def ask(question: str) -> str:
        """Ask."""
        return ""

    for own, expected in ((REMINDS, [2**number - 1 for number in range(1, 11)]), (None, [])):
        agent = Agent(name="bank", model="openai:gpt-5-mini", tools=[wire, ask], features=[Approvals(reminder=own)])
        calls = Say(calls=[Call("wire", {"euros": 7})]), Say(calls=[Call("ask", {"question": "Why?"})])
        run = await run_agent(agent, "Pay.", model=ScriptedModel(*calls, "Done."), person=says_nothing)
        approvals = [(number, round(hours)) for kind, number, hours in reminders(run) if kind == "approval"]
        assert approvals == list(enumerate(expected, 1))
        assert [number for kind, number, _ in reminders(run) if kind == "question"] == [1]
        assert [call.decision and call.decision.decision for call in run.calls] == ["timeout", "timeout"]


async def test_reminders_that_were_due_while_no_worker_ran_are_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number counts those that were skipped, and the next one keeps its time."""
    monkeypatch.setattr(workflow, "time", lambda: 1_430.0)
    call = ToolCall(id="a", name="pay", arguments="{}")
    wait = PersonWait(
        key="a", call=call, index=0, reason="approval", arguments={}, text="", step=1, reminder=60, since=1_000.0
    )
    assert wait.take_reminders() == 3  # they were due after 60, 180 and 420 s
    assert wait.next_reminder == 1_900.0


@pytest.mark.parametrize("interval", [0, 0.5, -1])
def test_a_reminder_interval_below_a_second_is_refused(interval: float) -> None:
    with pytest.raises(DeclarationError, match="Approvals: reminder must be 1 second or more"):
        Agent(name="a", model="openai:m", features=[Approvals(reminder=interval)])
    with pytest.raises(DeclarationError, match="approval_reminder must be 1 second or more"):
        tool(approval_reminder=interval)(says_nothing)


def test_the_refusal_of_an_edit_names_the_first_faults_only() -> None:
    """All of a megabyte's are more than an activity's result can have, and the update would never be answered."""

    @tool
    def sum_up(numbers: list[int]) -> str:
        """Sum up."""
        return ""

    error = valid(sum_up.arguments, {"numbers": ["a"] * 200_000, "x" * 900_000: 1})
    assert isinstance(error, Exception)
    text = _faults(error)
    assert text.startswith("numbers.0: Input should be a valid integer")
    assert text.endswith("and 199,980 more")
    assert 'has fields that are not known: "xxx' in text
    assert len(text) < 20_000


def test_an_edit_is_validated_by_the_patterns_of_pydantic() -> None:
    """Those are linear, and know all scripts; Python's `re` would refuse each edit, or take for ever."""

    @tool
    def greet(
        name: Annotated[str, Field(pattern=r"^\p{L}+$")], title: Annotated[str, Field(pattern=r"^(\w+\s?)+$")]
    ) -> str:
        """Greet."""
        return ""

    good = {"name": "Zoë", "title": "Prof Dr"}
    assert valid(greet.arguments, good) == good  # type: ignore[arg-type]
    assert isinstance(valid(greet.arguments, {"name": "Zoë", "title": "a" * 60 + "!"}), Exception)
