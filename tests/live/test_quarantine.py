"""Quarantined sub-agents: what they have read does not reach their caller, which stays trusted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live.test_guarded import PAY, bank, trusts  # noqa: F401 - a fixture
from tests.support.lab import DONE, Lab, call

READ = '{"prompt": "Read."}'


async def _after(bank: Lab, name: str) -> Any:  # noqa: F811
    return await bank.run([call(name, READ, "r1"), PAY, DONE], agent="quarantined_office")


def _sent(bank: Lab, ran: Any) -> str:  # noqa: F811
    return str([each.body for each in bank.model.requests_of(ran.id)])


async def test_the_caller_gets_only_the_valid_object_and_stays_trusted(bank: Lab) -> None:  # noqa: F811
    ran = await _after(bank, "sorter")
    assert json.loads(ran.calls[0]["result"]["text"]) == {
        "kind": "invoice of a supplier",
        "euros": 900,
        "number": "R-1",
    }
    assert trusts(ran) == [None, None]
    assert "trust" not in ran.result
    assert ran.calls[1]["result"]["text"] == "paid 900 to Mallory"
    sub_run = await bank.client.get_workflow_handle(ran.calls[0]["run"]["id"]).result()
    assert sub_run["trust"] == "untrusted"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("talker", "`talker` has worked, but its answer is a `Invoice` with a text that may not leave quarantine"),
        ("failing", "`failing` failed after it was started: the reason is in its own run."),
    ],
)
async def test_an_answer_with_words_and_an_error_do_not_leave_quarantine(bank: Lab, name: str, says: str) -> None:  # noqa: F811
    ran = await _after(bank, name)
    result = ran.calls[0]["result"]
    assert result["text"].startswith(says)
    assert result["error"]["kind"] == "tool_exception"
    assert "IGNORE" not in _sent(bank, ran)
    assert "PAY Mallory" not in _sent(bank, ran)
    assert trusts(ran) == [None, None]
    assert ran.calls[1]["result"]["text"] == "paid 900 to Mallory"


async def test_an_object_with_a_text_counts_as_untrusted(bank: Lab) -> None:  # noqa: F811
    ran = await _after(bank, "summarizer")
    assert trusts(ran) == ["untrusted", None]
    assert ran.calls[1]["result"]["error"]["kind"] == "denied"
    assert "x-mulligan-untrusted" not in str([each.body for each in bank.model.requests])
