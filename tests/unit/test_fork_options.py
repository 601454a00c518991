"""The options of a fork: which may run tools or are for operators, what is refused with which sentence, and its limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mulligan.client.origins.chained_run import request_digest
from mulligan.client.origins.fork_run import Fork, ForkError, _check_limits, parse_fork
from mulligan.errors import InvalidRunInputError
from mulligan.run_input import RunInput
from mulligan.wire.resume_page import ForkState


@pytest.mark.parametrize(
    ("options", "may_run_tools", "is_for_operators"),
    [
        ({}, False, False),
        ({"tools": "live"}, True, True),
        ({"unrecorded": "live"}, True, True),
        ({"tools": "live", "unrecorded": "live"}, True, True),
        ({"unrecorded": "error"}, False, False),
        ({"edits": {"prompt": "Go."}}, False, False),
        ({"edits": {"message": "And?"}}, False, False),
        ({"edits": {"instructions": "Be brief."}}, False, True),
        ({"edits": {"model": "openai:gpt"}}, False, True),
        ({"edits": {"results": {"c": 1}}}, False, True),
        ({"edits": {"results": {}}}, False, False),
    ],
)
def test_what_changes_the_agent_or_the_past_or_runs_tools_is_for_operators(
    options: dict[str, Any], may_run_tools: bool, is_for_operators: bool
) -> None:
    fork = parse_fork(options)
    assert (fork.may_run_tools, fork.is_for_operators) == (may_run_tools, is_for_operators)


@pytest.mark.parametrize(
    ("options", "keeps"), [({}, True), ({"pinned": False}, False), ({"version": "v1"}, False), ({"pinned": True}, True)]
)
def test_a_fork_keeps_the_agent_unless_a_version_is_chosen(options: dict[str, Any], keeps: bool) -> None:
    assert parse_fork(options).keeps_agent is keeps


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"at": 0}, "'at' cannot be used: Input should be greater than or equal to 1."),
        ({"tools": "real"}, "'tools' cannot be used: Input should be 'recorded' or 'live'."),
        ({"edits": {"results": 1}}, "'edits.results' cannot be used: Input should be a valid dictionary."),
        ({"edits": {"prompt": ""}}, "'edits.prompt' is empty; give a text or parts, or leave it out."),
        ({"edits": {"message": ""}}, "'edits.message' is empty; give a text or parts, or leave it out."),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ForkError) as refused:
        parse_fork(options)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("options", "name", "known"),
    [({"att": 1}, "'att'", "at, edits, tools"), ({"edits": {"prompts": "x"}}, "'edits.prompts'", "prompt, message")],
)
def test_an_unknown_option_is_answered_with_those_there_are(options: dict[str, Any], name: str, known: str) -> None:
    with pytest.raises(ForkError) as refused:
        parse_fork(options)
    assert str(refused.value).startswith(f"{name} is not an option of a fork; the options are: {known}")


def test_a_model_of_an_unknown_provider_is_refused() -> None:
    with pytest.raises(ForkError, match=r"'edits\.model' cannot be used"):
        parse_fork({"edits": {"model": "nobody"}})


def point(steps: int = 2, max_steps: int = 5, prices: dict[str, Any] | None = None, model: str = "m") -> ForkState:
    facts = SimpleNamespace(max_steps=max_steps, model=model, prices=prices or {})
    return cast(ForkState, SimpleNamespace(step=3, steps=steps, facts=facts))


@pytest.mark.parametrize(
    ("own", "steps", "fits"),
    [(None, 4, True), (None, 5, False), (None, 6, False), (3, 2, True), (3, 3, False), (9, 5, True)],
)
def test_a_fork_has_room_for_a_step_of_its_own(own: int | None, steps: int, fits: bool) -> None:
    """The steps before it count as well: by its own limit, or by that of the agent, which is 5."""
    run_input = RunInput(agent="a", prompt="Go.", max_steps=own)
    if fits:
        return _check_limits(run_input, Fork(), point(steps))
    with pytest.raises(
        InvalidRunInputError, match=f'"max_steps" is {own or 5}, and counts the {steps} steps before step 3'
    ):
        _check_limits(run_input, Fork(), point(steps))
    return None


def test_a_run_that_was_never_opened_has_the_limits_of_its_fork_only() -> None:
    unopened = ForkState(step=1, steps=0, facts=None, conversation={}, key="0", model="m")
    _check_limits(RunInput(agent="a", prompt="Go."), Fork(max_cost=1.0), unopened)
    with pytest.raises(InvalidRunInputError, match='"max_steps" is 1'):
        _check_limits(RunInput(agent="a", prompt="Go.", max_steps=1), Fork(), unopened.model_copy(update={"steps": 1}))


@pytest.mark.parametrize(
    ("options", "prices", "fits"),
    [
        ({"max_cost": 1.0}, {}, False),
        ({"max_cost": 1.0}, {"m": 1}, True),
        ({}, {}, True),
        ({"max_cost": 1.0, "pinned": False}, {}, True),
        ({"max_cost": 1.0, "edits": {"model": "openai:gpt"}}, {}, True),
    ],
)
def test_a_cost_is_limited_where_the_price_is_known(
    options: dict[str, Any], prices: dict[str, Any], fits: bool
) -> None:
    """Another agent or model has prices that the worker looks up."""
    run_input = RunInput(agent="a", prompt="Go.")
    if fits:
        return _check_limits(run_input, parse_fork(options), point(prices=prices))
    with pytest.raises(InvalidRunInputError, match='"max_cost" limits the fork, but the price of m was not known'):
        _check_limits(run_input, parse_fork(options), point(prices=prices))
    return None


def test_equal_requests_have_one_digest() -> None:
    """Whatever the order of their options, how the prompt is written, and for whom they work; None counts as not given."""
    digest = request_digest({"prompt": "Go.", "metadata": {"a": 1, "b": 2}})
    assert request_digest({"metadata": {"b": 2, "a": 1}, "prompt": "Go.", "user": "ada", "max_steps": None}) == digest
    assert len({digest, request_digest({"prompt": "Go."}), request_digest({"prompt": "go.", "metadata": {}})}) == 3
    parts = request_digest({"prompt": [{"type": "text", "text": "Go."}]})
    assert parts == request_digest({"prompt": ({"text": "Go.", "type": "text"},)})
