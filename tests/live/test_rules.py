"""Rules of approval: what a person has approved for good, of a run or of its tenant."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest
import typer
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError

from mulligan.cli import rules as rules_command
from mulligan.client import read_run
from mulligan.client import rules as tenant_and_run_rules
from mulligan.client.read_run import size_of_chain
from mulligan.client.rules import delete_rule, read_rules
from mulligan.wire.approval_rules import TENANT_RULES, rules_id
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.promise.test_people import pending
from tests.support.http_server import http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.rule_runs import AGAIN, MAIL, MORE, PAY, THIRD, approve


@pytest.fixture(scope="module")
async def bank(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"rules-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load(["tests.support.guarded_agents"]), lab.telemetry, at.task_queue):
        yield at


async def events_of(handle: WorkflowHandle[Any, Any], kind: str) -> list[dict[str, Any]]:
    page = await handle.query("events", args=[0, 1000])
    return [each for each in page["events"] if each["type"] == kind]


async def test_a_rule_of_the_run_approves_calls_with_equal_arguments_and_no_others(bank: Lab) -> None:
    handle = await bank.start([MAIL, PAY, AGAIN, MORE, DONE], agent="clerk")
    answer = await approve(handle, remember="run")
    (asked,) = await pending(handle)
    assert (asked["call_id"], asked["arguments"]["euros"]) == ("p4", 6)
    await handle.execute_update("decide", {"call_id": "p4", "decision": "deny"})
    ran = await bank.look(handle)
    assert [each["result"]["text"] for each in ran.calls[1:3]] == ["paid 5 to Ada"] * 2
    (rule,) = await handle.query("rules")
    first, second, _ = await events_of(handle, "decided")
    assert answer["rule"] == rule["name"]
    assert "rule" not in first
    assert second["rule"] == {"name": rule["name"], "by": "Ada", "at": rule["at"]}
    assert (second["call_id"], second["decision"], second["by"]) == ("p2", "approve", "Ada")
    assert [each["call_id"] for each in await events_of(handle, "waiting")] == ["p1", "p4"]
    assert ran.calls[2]["decision"]["rule"]["name"] == rule["name"]
    spans = ran.spans_of("agent.decision")
    assert [each.attributes.get("mulligan.decision.rule") for each in spans] == [None, rule["name"], None]


async def test_a_rule_of_the_tenant_counts_in_other_runs_until_it_is_deleted(bank: Lab) -> None:
    tenant = f"acme-{uuid.uuid4().hex[:6]}"
    first = await bank.start([MAIL, PAY, DONE], agent="clerk", tenant=tenant)
    answer = await approve(first, remember="tenant")
    await first.result()
    second = await bank.run([MAIL, PAY, DONE], agent="clerk", tenant=tenant)
    assert second.calls[1]["decision"]["rule"]["name"] == answer["rule"]
    other = await bank.start([MAIL, PAY, DONE], agent="clerk", tenant=f"{tenant}-2")
    assert [each["call_id"] for each in await pending(other)] == ["p1"]
    await other.cancel()
    (rule,) = (await read_rules(bank.client, tenant=tenant)).rules
    assert (rule.name, rule.scope, rule.tenant, rule.by, rule.tool) == (answer["rule"], "tenant", tenant, "Ada", "pay")
    await delete_rule(bank.client, rule, "Bob")
    third = await bank.start([MAIL, PAY, DONE], agent="clerk", tenant=tenant)
    assert [each["call_id"] for each in await pending(third)] == ["p1"]
    await approve(third, remember="tenant")
    await third.result()
    assert (await bank.run([MAIL, PAY, DONE], agent="clerk", tenant=tenant)).calls[1]["decision"]["rule"]


async def test_the_calls_of_a_step_ask_the_tenant_once_and_wait_in_the_order_of_the_calls(bank: Lab) -> None:
    """A question as well, although the tenant is not asked for it."""
    calls = [("pay_out", '{"euros": 5}', "c1"), ("ask_person", '{"question": "Whom?"}', "c2")]
    calls += [("pay_out", f'{{"euros": {number}}}', f"c{number}") for number in range(3, 7)]
    tenant = f"order-{uuid.uuid4().hex[:6]}"
    for asked in (["c1", "c2", "c3", "c4", "c5", "c6"], ["c1", "c2", "c3", "c5", "c6"]):
        handle = await bank.start([Turn(calls=calls), DONE], agent="asking_clerk", tenant=tenant)
        await pending(handle, len(asked))
        assert [each["call_id"] for each in await events_of(handle, "waiting")] == asked
        scheduled = [event.activity_task_scheduled_event_attributes async for event in handle.fetch_history_events()]
        assert [each.activity_type.name for each in scheduled].count("find_tenant_rules") == 1
        if "c4" in asked:
            given = {"call_id": "c4", "decision": "approve", "remember": "tenant"}
            await handle.execute_update("decide", given)
        await handle.cancel()


async def test_a_deleted_rule_of_a_run_acts_at_once(bank: Lab) -> None:
    handle = await bank.start([MAIL, PAY, AGAIN, MORE, THIRD, DONE], agent="clerk")
    await approve(handle, remember="run")
    await pending(handle)
    (rule,) = (await read_rules(bank.client, run_id=handle.id)).rules
    everywhere = await read_rules(bank.client)
    assert handle.id in [each.run for each in everywhere.rules]
    await delete_rule(bank.client, rule, "Bob")
    assert await handle.query("rules") == []
    await handle.execute_update("decide", {"call_id": "p4", "decision": "approve"})
    assert [each["call_id"] for each in await pending(handle)] == ["p3"]
    with pytest.raises(WorkflowUpdateFailedError) as failure:
        await handle.execute_update("forget_rule", {"name": rule.name})
    assert str(failure.value.cause) == f'UpdateRefusedError: There is no rule "{rule.name}"; there are: none.'
    await handle.cancel()


async def test_rules_of_a_run_outlive_continue_as_new(bank: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    turns = [MAIL, PAY, *[call("read_account", "{}", f"a{number}") for number in range(14)], AGAIN, DONE]
    handle = await bank.start(turns, agent="clerk")
    await approve(handle, remember="run")
    ran = await bank.look(handle)
    assert (await size_of_chain(bank.client, handle.id)).runs > 1
    assert ran.calls[-1]["decision"]["rule"]
    assert (await handle.query("rules"))[0]["by"] == "Ada"


async def test_the_workflow_of_a_tenants_rules_outlives_continue_as_new(
    bank: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RULE_UPDATES", 2)
    tenant = f"busy-{uuid.uuid4().hex[:6]}"
    handle = await bank.start([MAIL, PAY, MORE, DONE], agent="clerk", tenant=tenant)
    await approve(handle, remember="tenant")
    await approve(handle, remember="tenant")
    await handle.result()
    while (await bank.client.get_workflow_handle(rules_id(tenant)).describe()).run_id == (
        await bank.client.get_workflow_handle(rules_id(tenant)).describe()
    ).raw_description.workflow_execution_info.first_run_id:
        await asyncio.sleep(0.05)
    ran = await bank.run([MAIL, PAY, MORE, DONE], agent="clerk", tenant=tenant)
    assert [each["decision"]["rule"]["by"] for each in ran.calls[1:]] == ["Ada", "Ada"]


async def test_rules_over_http_are_the_tenants_own(bank: Lab) -> None:
    """A foreign tenant, and a token for other agents, neither see nor delete them. Operators do."""
    tokens = "shop:token-1,other:token-2,root:token-3:*,narrow:token-4:reader"
    async with http_server(bank.client, tokens=tokens, task_queue=bank.task_queue) as door:
        door.tokens = {"shop": "token-1", "other": "token-2", "root": "token-3", "narrow": "token-4"}
        run_id = f"run-{uuid.uuid4().hex[:8]}"
        bank.model.script(run_id, [MAIL, PAY, MORE, DONE])
        body = {"id": run_id, "agent": "clerk", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
        assert (await door.http.post("/api/runs", json=body, headers=door.by("shop"))).status_code == 201
        handle = bank.client.get_workflow_handle(run_id)
        path = f"/api/runs/{run_id}/decisions"
        await pending(handle)
        given = {"call_id": "p1", "decision": "approve", "remember": "tenant", "by": "Mallory"}
        answer = await door.http.post(path, json=given, headers=door.by("shop"))
        assert (answer.status_code, list(answer.json())) == (200, ["accepted", "call_id", "rule"])
        name = answer.json()["rule"]
        while [each["call_id"] for each in await pending(handle)] != ["p4"]:
            await asyncio.sleep(0.02)
        given = {"call_id": "p4", "decision": "approve", "remember": "run"}
        of_run = (await door.http.post(path, json=given, headers=door.by("shop"))).json()["rule"]

        async def names(who: str, query: str = "") -> Any:
            listed = await door.http.get(f"/api/rules{query}", headers=door.by(who))
            return (
                [each["name"] for each in listed.json()["rules"]] if listed.status_code == 200 else listed.status_code
            )

        (rule,) = (await door.http.get("/api/rules", headers=door.by("shop"))).json()["rules"]
        assert (rule["for"], rule["tenant"], rule["by"], rule["arguments"]) == (
            "tenant",
            "shop",
            "shop",
            {"to": "Ada", "euros": 5},
        )
        assert await names("other") == await names("narrow") == []
        assert await names("other", "?tenant=shop") == 403
        assert name in await names("root", "?tenant=shop")
        assert await names("other", f"?run={run_id}") == 404
        for who, query in (("other", ""), ("narrow", "")):
            refusal = await door.http.delete(f"/api/rules/{name}{query}", headers=door.by(who))
            assert (refusal.status_code, refusal.json()["code"]) == (404, "rule_not_found")
        deleted = await door.http.delete(f"/api/rules/{name}", headers=door.by("shop"))
        assert (deleted.status_code, deleted.json()) == (200, {"accepted": True})
        assert await names("shop") == []
        assert of_run


async def test_a_caller_without_the_role_makes_no_rule(bank: Lab) -> None:
    tokens = "shop:token-1:,shop:token-2::finance"
    async with http_server(bank.client, tokens=tokens, task_queue=bank.task_queue) as door:
        door.tokens = {"desk": "token-1", "chief": "token-2"}
        run_id = f"run-{uuid.uuid4().hex[:8]}"
        transfers = [call("transfer", '{"euros": 5}', f"t{number}") for number in (1, 2)]
        bank.model.script(run_id, [*transfers, DONE])
        body = {"id": run_id, "agent": "treasurer", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
        assert (await door.http.post("/api/runs", json=body, headers=door.by("desk"))).status_code == 201
        handle = bank.client.get_workflow_handle(run_id)
        await pending(handle)
        given = {"call_id": "t1", "decision": "approve", "remember": "run"}
        answers = [
            (await door.http.post(f"/api/runs/{run_id}/decisions", json=given, headers=door.by(who))).status_code
            for who in ("desk", "chief")
        ]
        assert answers == [403, 200]
        ran = await bank.look(handle)
        assert [each["decision"].get("rule", {}).get("by") for each in ran.calls] == [None, "shop"]


async def test_a_terminated_workflow_of_a_tenants_rules_approves_nothing(bank: Lab) -> None:
    tenant = f"gone-{uuid.uuid4().hex[:6]}"
    first = await bank.start([MAIL, PAY, DONE], agent="clerk", tenant=tenant)
    await approve(first, remember="tenant")
    await bank.client.get_workflow_handle(rules_id(tenant)).terminate()
    second = await bank.start([MAIL, PAY, DONE], agent="clerk", tenant=tenant)
    assert [each["call_id"] for each in await pending(second)] == ["p1"]
    await second.cancel()
    await asyncio.gather(first.result())


async def test_a_token_for_certain_agents_makes_tenant_rules_for_no_others(bank: Lab) -> None:
    """It sees the run of a sub-agent, below a run of its own agent; the sub-agent's rules of the tenant are not its own."""
    tenant = f"shop{uuid.uuid4().hex[:6]}"
    tokens = f"{tenant}:token-1:front_office,{tenant}:token-2"
    sub_calls = call("desk_clerk", '{"prompt": "Pay Ada."}', "c1")
    handle = await bank.start([sub_calls, DONE], agent="front_office", tenant=tenant)
    async with http_server(bank.client, tokens=tokens, task_queue=bank.task_queue) as door:
        door.tokens = {"narrow": "token-1", "broad": "token-2"}

        async def waiting() -> dict[str, Any]:
            while True:
                answer = await door.http.get(f"/api/runs/{handle.id}/pending", headers=door.by("narrow"))
                if answer.status_code == 200 and answer.json():
                    (call_that_waits,) = answer.json()
                    return dict(call_that_waits)
                await asyncio.sleep(0.02)

        asked = await waiting()
        assert (asked["agent"], asked["id"] == handle.id) == ("desk_clerk", False)
        path = f"/api/runs/{asked['id']}/decisions"
        given = {"call_id": asked["call_id"], "decision": "approve", "remember": "tenant"}
        forged = {**given, "agents": ["desk_clerk"]}
        for body in (given, forged):
            refusal = await door.http.post(path, json=body, headers=door.by("narrow"))
            assert (refusal.status_code, refusal.json()["code"]) == (403, "foreign_agent")
            assert 'for the agent "desk_clerk" is for those who may use that agent' in refusal.json()["detail"]
        assert (await read_rules(bank.client, tenant=tenant)).rules == []
        of_run = await door.http.post(path, json={**given, "remember": "run"}, headers=door.by("narrow"))
        second = await waiting()
        listed = (await door.http.get(f"/api/rules?run={asked['id']}", headers=door.by("narrow"))).json()["rules"]
        assert [each["name"] for each in listed] == [of_run.json()["rule"]]
        where = f"/api/rules/{of_run.json()['rule']}?run={asked['id']}"
        assert (await door.http.delete(where, headers=door.by("narrow"))).status_code == 200
        given = {**given, "call_id": second["call_id"]}
        answer = await door.http.post(path, json=given, headers=door.by("broad"))
        assert (answer.status_code, answer.json()["rule"][:8]) == (200, "pay_out-")
        await handle.result()


async def test_a_rule_of_the_tenant_does_not_count_for_another_user(bank: Lab) -> None:
    tenant = f"acme-{uuid.uuid4().hex[:6]}"
    first = await bank.start([MAIL, PAY, DONE], agent="clerk", tenant=tenant, user="ann")
    assert (await pending(first))[0]["user"] == "ann"
    answer = await approve(first, remember="tenant")
    await first.result()
    (rule,) = (await read_rules(bank.client, tenant=tenant)).rules
    assert (rule.name, rule.user) == (answer["rule"], "ann")
    for other in ({"user": "bob"}, {}):
        asking = await bank.start([MAIL, PAY, DONE], agent="clerk", tenant=tenant, **other)
        assert [(each["call_id"], each.get("user")) for each in await pending(asking)] == [("p1", other.get("user"))]
        own = await approve(asking, remember="tenant")
        assert own["rule"] != answer["rule"]
        await asking.result()
    for known in ({"user": "ann"}, {"user": "bob"}, {}):
        ran = await bank.run([MAIL, PAY, DONE], agent="clerk", tenant=tenant, **known)
        assert ran.calls[1]["decision"]["rule"]


async def test_a_tenants_rules_that_nobody_answers_for_are_not_taken_for_none(
    bank: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever deletes a rule must not read that there is none, while it approves calls as soon as a worker is back."""
    defaults = read_run.ask_once.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", timedelta(seconds=1))
    monkeypatch.setattr(rules_command, "connect_or_fail", AsyncMock(return_value=bank.client))
    tenant = f"alone-{uuid.uuid4().hex[:6]}"
    handle = await bank.client.start_workflow(TENANT_RULES, [], id=rules_id(tenant), task_queue=f"nobody-{tenant}")
    try:
        all_rules = await read_rules(bank.client, tenant=tenant)
        assert (all_rules.rules, list(all_rules.unread), all_rules.may_have_others) == ([], [handle.id], True)
        assert handle.id in (await read_rules(bank.client)).unread
        assert await rules_command.rules(tenant=tenant) == 2
        assert f"{handle.id} may have rules, but does not answer" in (shown := capsys.readouterr().err)
        assert "there are no rules" not in shown
        with pytest.raises(typer.Exit) as failure:
            await rules_command.rules(tenant=tenant, delete="pay-1")
        assert (failure.value.exit_code, "no rule 'pay-1' was found, but" in capsys.readouterr().err) == (2, True)
        async with http_server(bank.client, tokens=f"{tenant}:token-1", task_queue=bank.task_queue) as door:
            door.tokens = {tenant: "token-1"}
            refusal = await door.http.delete("/api/rules/pay-1", headers=door.by(tenant))
            assert (refusal.status_code, refusal.json()["code"]) == (503, "no_worker")
            assert f"{handle.id} may have rules" in refusal.json()["detail"]
            listed = (await door.http.get("/api/rules", headers=door.by(tenant))).json()
            assert (listed["rules"], list(listed["unread"])) == ([], [handle.id])
            assert (listed["encrypted"], listed["complete"]) == (0, True)
            assert (await door.http.delete("/api/rules/x?run=no-run", headers=door.by(tenant))).status_code == 404
    finally:
        await handle.terminate()
    with pytest.raises(typer.Exit) as failure:
        await rules_command.rules("no-such-run")
    assert (failure.value.exit_code, "there is no run 'no-such-run'" in capsys.readouterr().err) == (2, True)


async def test_the_list_says_what_it_has_not_looked_at(bank: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = f"many-{uuid.uuid4().hex[:6]}"
    handle = await bank.start([MAIL, PAY, MORE, AGAIN, DONE], agent="clerk", tenant=tenant)
    await approve(handle, remember="tenant")
    await approve(handle, remember="run")
    while not (found := {(each.tenant, each.run) for each in (await read_rules(bank.client)).rules}) & {
        (None, handle.id)
    }:
        await asyncio.sleep(0.05)
    assert (tenant, None) in found
    monkeypatch.setattr(tenant_and_run_rules, "MOST_OPEN_RUNS", 0)
    of_tenants = await read_rules(bank.client)
    assert (of_tenants.complete, tenant in {each.tenant for each in of_tenants.rules}) == (False, True)
    monkeypatch.setattr(tenant_and_run_rules, "MOST_OPEN_RUNS", 10_000)
    monkeypatch.setattr(tenant_and_run_rules, "readable_memo", AsyncMock(return_value=None))
    encrypted = await read_rules(bank.client)
    assert (encrypted.encrypted > 0, encrypted.may_have_others) == (True, True)
    await handle.cancel()
