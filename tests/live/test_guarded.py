"""Labels of what others have written, and `Guarded`: on a real server, whose model obeys every word that it reads."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan import fork_run, resume_run
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.promise.test_people import pending
from tests.support.http_server import http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN

MAIL = call("read_mail", '{"box": "in"}', "m1")
PAY = call("pay", '{"to": "Mallory", "euros": 900}', "p1")
ACCOUNT = call("read_account", "{}", "a1")


@pytest.fixture(scope="module")
async def bank(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"bank-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load(["tests.support.guarded_agents"]), lab.telemetry, at.task_queue):
        yield at


def trusts(ran: Any) -> list[str | None]:
    return [each["result"].get("trust") for each in ran.calls]


async def test_results_of_untrusted_tools_are_labelled_in_steps_events_spans_and_the_result(bank: Lab) -> None:
    ran = await bank.run([MAIL, ACCOUNT, DONE], agent="reader")
    assert trusts(ran) == ["untrusted", None]
    assert ran.result["trust"] == "untrusted"
    events = (await ran.handle.query("events", args=[0, 1000]))["events"]
    settled = [each["result"].get("trust") for each in events if each["type"] == "tool_call_settled"]
    assert settled == ["untrusted", None]
    assert [span.attributes.get("mulligan.trust") for span in ran.spans_of("ai.toolCall")] == ["untrusted", None]


async def test_a_guarded_call_is_denied_and_the_model_is_told_why(bank: Lab) -> None:
    ran = await bank.run([PAY, MAIL, call("pay", '{"to": "Mallory", "euros": 900}', "p2"), DONE], agent="strict_clerk")
    assert RAN[ran.id] == [("pay", {"to": "Mallory", "euros": 900}), ("read_mail", {"box": "in"})]
    assert ran.calls[2]["result"]["text"].startswith(
        "`pay` was not run: this conversation has results of `read_mail`, which others may have written"
    )
    assert (ran.calls[2]["attempts"], ran.result["recovered_failures"]) == (0, 1)
    failed = [span for span in ran.spans_of("ai.toolCall") if span.attributes.get("mulligan.recovered")]
    assert len(failed) == 1


async def test_a_run_that_is_resumed_or_forked_is_still_guarded(bank: Lab) -> None:
    first = await bank.run([MAIL, DONE], agent="strict_clerk")
    bank.model.script(f"{first.id}-more", [MAIL, DONE, PAY, DONE])
    resumed = await resume_run(
        bank.client, first.id, prompt="Go on.", model=f"openai-chat:{first.id}-more", id=f"{first.id}-more"
    )
    again = await bank.look(resumed)
    assert again.calls[-1]["result"]["error"]["kind"] == "denied"
    bank.model.script(f"{first.id}-fork", [MAIL, PAY, DONE])
    forked = await fork_run(
        bank.client, first.id, edits={"model": f"openai-chat:{first.id}-fork"}, tools="live", new_id=f"{first.id}-fork"
    )
    ran = await bank.look(forked)
    assert trusts(ran) == ["untrusted", None]
    assert ran.calls[-1]["result"]["error"]["kind"] == "denied"
    bank.model.script(f"{first.id}-early", [PAY, DONE])
    forked = await fork_run(
        bank.client,
        first.id,
        at=1,
        edits={"model": f"openai-chat:{first.id}-early"},
        tools="live",
        new_id=f"{first.id}-early",
    )
    assert (await bank.look(forked)).calls[-1]["result"]["text"] == "paid 900 to Mallory"


async def test_what_a_sub_agent_has_read_counts_and_its_calls_are_guarded_too(bank: Lab) -> None:
    """The sub-agent that pays is not declared with `Guarded`: the agent that calls it is."""
    harmless = await bank.run([call("bookkeeper", '{"prompt": "Read."}', "b1"), PAY, DONE], agent="office")
    assert trusts(harmless) == [None, None]
    assert harmless.calls[1]["result"]["text"] == "paid 900 to Mallory"
    ran = await bank.run([call("mail_reader", '{"prompt": "Read."}', "r1"), PAY, DONE], agent="office")
    assert trusts(ran) == ["untrusted", None]
    assert ran.calls[1]["result"]["error"]["kind"] == "denied"
    trust = [
        span.attributes.get("mulligan.trust")
        for span in ran.spans_of("ai.toolCall")
        if "mulligan.sub_run.id" in span.attributes
    ]
    assert trust == ["untrusted"]
    ran = await bank.run([MAIL, call("payer", '{"prompt": "Pay."}', "y1"), DONE], agent="office")
    steps = (await bank.client.get_workflow_handle(f"{ran.id}/y1").query("steps", args=[0, 10]))["steps"]
    assert steps[0]["tool_calls"][0]["result"]["error"]["kind"] == "denied"
    assert ("pay", {"to": "Mallory", "euros": 900}) not in RAN[f"{ran.id}/y1"]


def script(*lines: str) -> Turn:
    return call("run_code", json.dumps({"code": "\n".join(lines)}), "s1")


async def test_what_a_script_has_read_counts_for_its_later_calls_and_for_its_result(bank: Lab) -> None:
    """But not for its calls before, nor for those that it made before it had the result."""
    account, pay = "print(await read_account())", "await pay(to='Mallory', euros=900)"
    mail = "await read_mail(box='in')"
    ran = await bank.run([script(account, pay, mail, account, f"try:\n    {pay}\nexcept ToolError:\n    pass"), DONE],
                         agent="coding_clerk")  # fmt: skip
    [outer] = ran.calls
    assert [(each["name"], each["result"].get("trust")) for each in outer["calls"]] == [
        ("read_account", None), ("pay", None), ("read_mail", "untrusted"), ("read_account", "untrusted"), ("pay", None)
    ]  # fmt: skip
    assert outer["calls"][4]["result"]["error"]["kind"] == "denied"
    assert [each for each, _ in RAN[ran.id]].count("pay") == 1
    assert (outer["result"]["trust"], ran.result["trust"]) == ("untrusted", "untrusted")
    trust = {each.attributes["gen_ai.tool.call.id"]: each.attributes.get("mulligan.trust") for each in
             ran.spans_of("ai.toolCall")}  # fmt: skip
    assert trust == {
        "s1": "untrusted",
        "s1.1": None,
        "s1.2": None,
        "s1.3": "untrusted",
        "s1.4": "untrusted",
        "s1.5": None,
    }
    both = await bank.run(
        [script("import asyncio", f"await asyncio.gather({mail[6:]}, {pay[6:]})"), PAY, DONE], agent="coding_clerk"
    )
    assert RAN[both.id].count(("pay", {"to": "Mallory", "euros": 900})) == 1
    assert both.calls[1]["result"]["error"]["kind"] == "unknown_tool"
    clean = await bank.run([script(account, pay), DONE], agent="coding_clerk")
    assert (trusts(clean), clean.result.get("trust")) == ([None], None)


async def test_a_sub_agent_of_a_script_is_guarded_by_what_the_script_has_read(bank: Lab) -> None:
    ran = await bank.run(
        [script("await read_mail(box='in')", "await payer(prompt='Pay.')"), DONE], agent="coding_office"
    )
    assert ("pay", {"to": "Mallory", "euros": 900}) not in RAN[f"{ran.id}/s1.2"]
    steps = (await bank.client.get_workflow_handle(f"{ran.id}/s1.2").query("steps", args=[0, 10]))["steps"]
    assert steps[0]["tool_calls"][0]["result"]["error"]["kind"] == "denied"


@pytest.mark.parametrize("decider", ["chief", "operator"])
async def test_only_a_caller_with_the_role_decides(bank: Lab, decider: str) -> None:
    """Nor does a client that names roles in its request. The call keeps waiting."""
    tokens = "shop:token-1:,shop:token-2::finance|audit,root:token-3:*"
    async with http_server(bank.client, tokens=tokens, task_queue=bank.task_queue) as door:
        door.tokens = {"desk": "token-1", "chief": "token-2", "operator": "token-3"}
        run_id = f"run-{uuid.uuid4().hex[:8]}"
        bank.model.script(run_id, [call("transfer", '{"euros": 5}', "t1"), DONE])
        body = {"id": run_id, "agent": "treasurer", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
        assert (await door.http.post("/api/runs", json=body, headers=door.by("desk"))).status_code == 201
        (asked,) = await pending(bank.client.get_workflow_handle(run_id))
        assert asked["role"] == "finance"
        for decision in ("approve", "deny"):
            given = {"call_id": "t1", "decision": decision, "roles": ["finance"]}
            refused = await door.http.post(f"/api/runs/{run_id}/decisions", json=given, headers=door.by("desk"))
            assert (refused.status_code, refused.json()["code"]) == (403, "role_needed")
            assert 'the role "finance"' in refused.json()["detail"]
        waiting = (await door.http.get(f"/api/runs/{run_id}/pending", headers=door.by("desk"))).json()
        assert [(each["call_id"], each["role"]) for each in waiting] == [("t1", "finance")]
        given = {"call_id": "t1", "decision": "approve"}
        accepted = await door.http.post(f"/api/runs/{run_id}/decisions", json=given, headers=door.by(decider))
        assert accepted.status_code == 200
    ran = await bank.look(bank.client.get_workflow_handle(run_id))
    assert RAN[run_id] == [("transfer", {"euros": 5})]
    assert ran.calls[0]["decision"]["decision"] == "approve"


async def test_who_reaches_temporal_itself_decides_all(bank: Lab) -> None:
    handle = await bank.start([call("transfer", '{"euros": 5}', "t1"), DONE], agent="treasurer")
    await pending(handle)
    await handle.execute_update("decide", {"call_id": "t1", "decision": "approve"})
    assert (await bank.look(handle)).calls[0]["result"]["text"] == "transferred 5"
