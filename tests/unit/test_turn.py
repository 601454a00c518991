"""A turn: which limit ends it, which model is called, what it costs, and what is its output."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.prices import Price
from mulligan.run_input import RunInput
from mulligan.values import ErrorInfo, HostedCall, Usage
from mulligan.wire.agent_facts import OpenedRun
from mulligan.wire.model_call import AcceptedOutput, RejectedAnswer
from mulligan.wire.run_context import RunContext
from mulligan.wire.start_input import StartInput
from mulligan.workflows.conversation.conversation import Conversation
from mulligan.workflows.conversation.records import CallRecord, StepRecord
from mulligan.workflows.turn import Turn, output_value, status_of
from tests.support.core_parts import TRACE, agent_facts, answer_of, open_turn

TEN = Usage(input_tokens=7, output_tokens=3)
REJECTED = RejectedAnswer(text="No.", error=ErrorInfo(kind="guardrail", message="no"))


def record_of(*arguments: Any) -> StepRecord:
    calls = [CallRecord(arguments=each) for each in arguments]
    return StepRecord(at=0, usage=Usage(), model="m", calls=calls)


@pytest.mark.parametrize(
    ("facts", "given", "used", "reached"),
    [
        ({}, {}, {"steps": 19}, None),
        ({}, {}, {"steps": 20}, "max_steps"),
        ({}, {"max_steps": 3}, {"steps": 3}, "max_steps"),
        ({}, {"max_steps": 30}, {"steps": 21}, None),
        ({"max_total_tokens": 11}, {}, {"usage": TEN}, None),
        ({"max_total_tokens": 10}, {}, {"usage": TEN}, "max_tokens"),
        ({"max_total_tokens": 99}, {"max_total_tokens": 10}, {"usage": TEN}, "max_tokens"),
        ({"max_total_tokens": 10}, {"max_total_tokens": 11}, {"usage": TEN}, None),
        ({"max_total_tokens": 10}, {}, {"usage": TEN, "steps": 20}, "max_tokens"),
    ],
)
def test_a_turn_ends_at_the_limit_of_its_input_or_else_of_its_agent(
    facts: dict[str, Any], given: dict[str, Any], used: dict[str, Any], reached: str | None
) -> None:
    assert open_turn(agent_facts(**facts), used, **given).limit_reached == reached


@pytest.mark.parametrize(
    ("facts", "given", "spent", "reached"),
    [
        (None, None, 99.0, None),
        (1.0, None, 0.99, None),
        (1.0, None, 1.0, "max_cost"),
        (1.0, 2.0, 1.5, None),
        (9.0, 2.0, 2.0, "max_cost"),
    ],
)
def test_a_turn_ends_when_it_has_spent_its_money(
    facts: float | None, given: float | None, spent: float, reached: str | None
) -> None:
    turn = open_turn(agent_facts(max_cost=facts), max_cost=given)
    turn.spent = spent
    assert turn.limit_reached == reached


def test_a_failed_call_counts_in_each_step_in_a_row() -> None:
    """Any other call begins at 1; a limit of None counts nothing."""
    turn = open_turn(agent_facts(max_repeats=3))
    turn.count_repeats(["a", "b"])
    turn.count_repeats(["a"])
    assert (turn.repeats, turn.limit_reached) == ({"a": 2}, None)
    turn.count_repeats(["b", "a"])
    assert (turn.repeats, turn.limit_reached) == ({"b": 1, "a": 3}, "max_repeats")
    turn.count_repeats([])
    assert (turn.repeats, turn.limit_reached) == ({}, None)
    unlimited = open_turn()
    unlimited.count_repeats(["a"])
    assert unlimited.repeats == {}


@pytest.mark.parametrize(("declared", "given", "most"), [(10, None, 10), (10, 3, 3), (3, 10, 3), (10, 0, 0)])
def test_the_smaller_limit_of_sub_agents_runs_counts(declared: int, given: int | None, most: int) -> None:
    assert open_turn(agent_facts(max_sub_runs=declared), max_sub_runs=given).max_sub_runs == most


def test_the_models_are_the_agents_unless_the_input_names_one() -> None:
    facts = agent_facts(fallbacks=["scripted:second"])
    turn = open_turn(facts)
    assert (turn.models, turn.model) == (["scripted:first", "scripted:second"], "scripted:first")
    turn.at = 1
    assert turn.model == "scripted:second"
    assert open_turn(facts, model="scripted:other").models == ["scripted:other"]


KNOWN = Price(input=1.0, output=2.0)  # 13 millionths for TEN


def test_a_turn_costs_what_its_calls_cost() -> None:
    turn = open_turn(agent_facts(prices={"scripted:first": KNOWN}), {"cost": 0.0})
    turn.add_model_call("scripted:first", TEN)
    turn.add_model_call("scripted:first", TEN)
    assert (turn.result.usage.total_tokens, turn.result.cost, turn.spent) == (20, 0.000026, 0.000026)
    assert turn.result.counted == 0.0


def test_the_cost_is_unknown_as_soon_as_one_price_is() -> None:
    """`max_cost` counts what is known."""
    turn = open_turn(agent_facts(prices={"scripted:first": KNOWN}), {"cost": 0.0})
    turn.add_model_call("scripted:first", TEN)
    turn.add_model_call("scripted:dear", TEN)
    assert (turn.result.cost, turn.spent, turn.result.counted) == (None, 0.000013, 0.000013)
    turn.add_model_call("scripted:first", TEN)
    assert (turn.result.cost, turn.spent, turn.result.counted) == (None, 0.000026, 0.000026)


def test_the_tools_that_a_provider_runs_cost_as_well() -> None:
    prices = {"openai:m": KNOWN, "openai:search": Price(input=0, output=0, calls=10.0)}
    turn = open_turn(agent_facts(model="openai:m", prices=prices), {"cost": 0.0})
    hosted = [HostedCall(id=name, name=name, arguments="{}", status="completed") for name in ("search", "free")]
    turn.add_answer(answer_of(usage=TEN, hosted_calls=hosted))
    assert (turn.result.steps, turn.result.cost) == (1, 0.010013)
    dear = open_turn(agent_facts(model="openai:other", prices=prices), {"cost": 0.0})
    dear.add_answer(answer_of(usage=TEN, hosted_calls=hosted))
    assert (dear.result.cost, dear.spent) == (None, 0.01)


def test_the_tokens_of_a_second_model_have_its_own_price() -> None:
    prices = {"scripted:first": KNOWN, "scripted:mender": Price(input=100.0, output=0.0)}
    turn = open_turn(agent_facts(prices=prices), {"cost": 0.0})
    turn.add_answer(answer_of(usage=TEN, usage_of_repairs={"scripted:mender": Usage(input_tokens=2)}))
    assert turn.result.cost == pytest.approx((5 * 1 + 3 * 2 + 2 * 100) / 1_000_000)


@pytest.mark.parametrize(("prices", "cost"), [({}, None), ({"scripted:first": KNOWN}, 0.0)])
def test_a_turn_without_any_known_price_has_no_cost(prices: dict[str, Price], cost: float | None) -> None:
    given = StartInput(agent="clerk", prompt="Pay Ada.\nAt once.", tenant="t")
    turn = Turn.opened(2, given, OpenedRun(facts=agent_facts(prices=prices), trace=TRACE))
    assert (turn.result.cost, turn.result.trace_id, turn.task) == (cost, f"{1:032x}", "Pay Ada.")
    assert (turn.input.prompt, turn.input.messages, turn.input.tenant, turn.next_step) == (None, [], "t", 1)


OUTPUT = AcceptedOutput(type="Sum", value={"total": 3})


@pytest.mark.parametrize(
    ("structured", "calls", "fields", "output", "is_final"),
    [
        (False, (), {}, "Hi.", True),
        (False, ("look",), {}, "Hi.", False),  # what it has said so far
        (True, (), {}, "Hi.", True),  # nothing else will come
        (True, ("look",), {}, None, False),
        (False, (), {"rejected": REJECTED}, None, False),
        (False, ("look",), {"rejected": REJECTED}, None, False),
        (True, ("final",), {"output": OUTPUT}, {"total": 3}, True),
        (True, ("final",), {"output": OUTPUT, "rejected": REJECTED}, None, False),
    ],
)
def test_what_is_the_output_and_whether_it_is_final(
    structured: bool, calls: tuple[str, ...], fields: dict[str, Any], output: Any, is_final: bool
) -> None:
    turn = open_turn(agent_facts(structured=structured), {"output": "before"})
    answer = answer_of(*calls, text="Hi.", reason="SAFETY", **fields)
    assert turn.take_output(answer, record_of(*({} for _ in calls))) is is_final
    assert turn.result.output == output
    assert turn.result.output_type == ("Sum" if isinstance(output, dict) else None)
    assert turn.result.reason == ("SAFETY" if is_final and not isinstance(output, dict) else None)


def test_an_output_is_read_where_history_has_it() -> None:
    """As its value; as the text of the message; or as the arguments of the call that gave it."""
    verbatim = AcceptedOutput(type="Sum", is_verbatim=True)
    called = AcceptedOutput(type="Sum", is_verbatim=True, call=1)
    assert output_value(answer_of(output=OUTPUT), []) == {"total": 3}
    assert output_value(answer_of(text='{"total": 4}', output=verbatim), []) == {"total": 4}
    assert output_value(answer_of("a", "b", output=called), [{"total": 5}, {"total": 6}]) == {"total": 6}


@pytest.mark.parametrize(
    ("finish_reason", "status"),
    [
        ("stop", "completed"),
        ("tool_calls", "completed"),
        ("length", "truncated"),
        ("content_filter", "refused"),
        ("refusal", "refused"),
    ],
)
def test_why_the_answer_ended_is_the_status(finish_reason: str, status: str) -> None:
    """An accepted output is complete however the answer ended."""
    assert status_of(answer_of(finish_reason=finish_reason)) == status
    assert status_of(answer_of(finish_reason=finish_reason, output=OUTPUT)) == "completed"


def test_whoever_takes_the_conversation_over_has_its_own_facts() -> None:
    """Its former agents' are kept, for when they get it back; a version is one agent's."""
    first, second = agent_facts(digest="1", max_cost=2.0), agent_facts(digest="2")
    turn = open_turn(first, version="v1", tenant="t")
    turn.at = 1
    given = turn.input_of("bookkeeper")
    assert (given.agent, given.max_cost, given.version, given.tenant) == ("bookkeeper", 2.0, None, "t")
    turn.hand_over("bookkeeper", second)
    assert (turn.handoffs, turn.at, turn.facts, turn.input.agent, turn.input.version) == (
        1,
        0,
        second,
        "bookkeeper",
        None,
    )
    assert (turn.facts_of("clerk"), turn.facts_of("bookkeeper"), turn.facts_of("nobody")) == (first, second, None)
    assert turn.all_facts == [second, first]
    turn.hand_over("clerk", first)
    assert (turn.handoffs, turn.facts, turn.all_facts) == (2, first, [first, second])


def test_the_request_of_a_model_call_says_what_the_worker_needs() -> None:
    turn = open_turn(
        agent_facts(guarded=True, model_attempts=4, model_patience=9, model_timeout=5),
        {"steps": 2},
        metadata={"order": "7"},
        on_invalid_tool_input="throw",
    )
    conversation = Conversation()
    conversation.append_request(RunInput(agent="clerk", prompt="Go.").new_messages)
    where = RunContext(agent="clerk", conversation="0", trace=TRACE)
    request = turn.model_request(where, conversation, 0)
    assert (request.model, request.step, request.definition, request.uncached) == ("scripted:first", 3, "d", 1)
    assert (request.patience, request.timeout, request.attempts) == (9, 5, 4)
    assert (request.on_invalid_tool_input, request.summarized_answers) == ("throw", None)
    assert request.guard is not None
    assert request.guard.metadata == {"order": "7"}
    assert turn.model_request(where, conversation, 1).uncached == 0
    assert open_turn().model_request(where, conversation, 1).guard is None


def test_the_end_of_a_trace_says_what_the_turn_has_used() -> None:
    used = {"steps": 2, "recovered_failures": 1, "usage": TEN, "cost": 0.5, "sub_runs": 3}
    turn = open_turn(used=used)
    request = turn.finish_request(RunContext(agent="clerk", conversation="0", trace=TRACE), "failed")
    assert (request.turn, request.status, request.steps, request.recovered_failures) == (1, "failed", 2, 1)
    assert (request.usage, request.cost) == (TEN, 0.5)
    consumed = turn.consumption
    assert (consumed.steps, consumed.usage, consumed.cost, consumed.sub_runs) == (2, TEN, 0.5, 3)
    assert (turn.used.usage, turn.used.cost) == (TEN, 0.5)
