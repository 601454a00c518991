"""Rules of approval of a run, without a server: which calls they approve, and what cannot be one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mulligan.wire.approval_rules import RULE_BYTES
from mulligan.worker.loading import load
from tests.promise.test_people import pending
from tests.support.lab import DONE, call
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.rule_runs import AGAIN, MAIL, MORE, PAY, THIRD, approve, refused
from tests.support.shop_agents import RAN


@pytest.fixture(scope="module")
async def bank(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load(["tests.support.guarded_agents"])) as at:
        yield at


async def test_a_rule_that_was_made_without_foreign_results_does_not_count_after_them(bank: MemoryLab) -> None:
    """Whoever approved the transfer saw no mail: the rule does not count once the agent has read one, for a guarded call."""
    send, again = call("send", '{"euros": 5}', "s1"), call("send", '{"euros": 5}', "s2")
    handle = await bank.start([send, again, MAIL, call("send", '{"euros": 5}', "s3"), DONE], agent="approved_clerk")
    await approve(handle, remember="run")
    (asked,) = await pending(handle)
    assert (asked["call_id"], len(asked["untrusted"])) == ("s3", 1)
    await approve(handle, remember="run")
    ran = await bank.look(handle)
    assert [each["decision"].get("rule") is not None for each in ran.calls if each["name"] == "send"] == [0, 1, 0]
    assert [rule["untrusted"] for rule in await handle.query("rules") if rule.get("untrusted")] == [True]


async def test_the_rule_has_the_arguments_that_the_person_has_edited(bank: MemoryLab) -> None:
    handle = await bank.start([MAIL, PAY, MORE, THIRD, DONE], agent="clerk")
    await approve(handle, remember="run", arguments={"to": "Ada", "euros": 6})
    assert [each["call_id"] for each in await pending(handle)] == ["p3"]
    await handle.cancel()
    assert RAN[handle.id][1:] == [("pay", {"to": "Ada", "euros": 6})] * 2


async def test_what_cannot_be_a_rule_is_refused_before_anything_is_decided(bank: MemoryLab) -> None:
    long = call("pay", '{"to": "%s", "euros": 5}' % ("x" * 300_000), "p1")
    handle = await bank.start([MAIL, long, DONE], agent="clerk")
    assert f"at most {RULE_BYTES:,} are accepted" in await refused(handle, remember="run")
    assert "The run has no tenant" in await refused(handle, remember="tenant", arguments={"to": "Ada", "euros": 1})
    assert '"remember" is allowed with "approve" only' in await refused(handle, remember="run", decision="deny")
    assert '"remember"' in await refused(handle, remember="for ever")
    many = {"to": "x" * 1_000_000, "euros": 1}
    assert "at most" in await refused(handle, remember="run", arguments=many)
    assert [each["call_id"] for each in await pending(handle)] == ["p1"]
    assert await handle.query("rules") == []
    await handle.cancel()


async def test_whoever_decides_sees_the_earlier_decisions_on_the_tool(bank: MemoryLab) -> None:
    handle = await bank.start([MAIL, PAY, AGAIN, MORE, DONE], agent="clerk")
    assert "earlier" not in (await pending(handle))[0]
    await approve(handle, remember="run")
    (asked,) = await pending(handle)
    second, first = asked["earlier"]
    assert (first["step"], first["call_id"], first["decision"], first["by"]) == (2, "p1", "approve", "Ada")
    assert first["arguments"] == '{"to": "Ada", "euros": 5}'
    (rule,) = await handle.query("rules")
    assert (second["call_id"], second["rule"]) == ("p2", rule["name"])
    await handle.cancel()
