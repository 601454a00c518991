"""The tags by which workers with the same agents know each other."""

from __future__ import annotations

import pytest
from temporalio.exceptions import ApplicationErrorCategory

from mulligan.activities.agent_not_served import _declined
from mulligan.client.served_agents import ServedAgents, tag_of, without_tag

TAG = ServedAgents("shop", frozenset({"a", "b"})).tag


def test_workers_with_the_same_agents_have_the_same_tag() -> None:
    assert ServedAgents("shop", frozenset({"b", "a"})).tag == TAG
    assert ServedAgents("shop", frozenset({"a"})).tag != TAG
    assert ServedAgents("shop", frozenset()).tag == ""
    assert tag_of(f"1234@host{TAG}") == TAG
    assert [without_tag(f"shop{TAG}"), without_tag(f"shop{TAG}-models")] == ["shop", "shop"]


@pytest.mark.parametrize(
    "name", ["pod-1@x#prod7", "1234@host#green", "shop#agent", "jobs#daily", "jobs~abcd", "1@h#~ABCD"]
)
def test_names_of_a_users_own_have_no_tag(name: str) -> None:
    assert tag_of(name) == ""
    assert without_tag(name) == name


def test_an_activity_that_is_declined_is_not_tried_again_by_temporal() -> None:
    """The workflow tries other task queues. The policies do not name the type of the error: the error says it itself."""
    declined = _declined("The worker does not serve it.", ["other"])
    assert declined.non_retryable
    assert declined.category is ApplicationErrorCategory.BENIGN
    assert declined.details == (["other"],)
