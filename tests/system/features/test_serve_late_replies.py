"""Replies to calls that another request decides, and whose run ends, after this request has asked what waits."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest

from mulligan.serve.caller import ANYBODY, Caller
from mulligan.serve.mcp_api.person_forms import submit_forms
from mulligan.serve.replies import PersonReply, send_replies
from mulligan.serve.runs import Runs
from mulligan.serve.turn_stream import WaitingCall
from mulligan.wire.updates import Decide
from tests.support.lab import DONE, Lab, call

REFUND = call("refund", '{"order": 7, "amount": {"euros": 2}}', "c1")


class Overtaken(Runs):
    """After each look at what waits, another request denies the call, and the run ends."""

    async def pending(self, caller: Caller, run_id: str) -> list[dict[str, Any]]:
        waiting = await super().pending(caller, run_id)
        assert [each["call_id"] for each in waiting] == ["c1"]
        await self.decide(caller, run_id, Decide(call_id="c1", decision="deny"))
        await self.client.get_workflow_handle(run_id).result()
        return waiting


@pytest.fixture
async def run_id(lab: Lab) -> str:
    """A run whose call waits for approval."""
    handle = await lab.start([REFUND, DONE], agent="desk")
    while not await handle.query("pending"):
        await asyncio.sleep(0.05)
    return str(handle.id)


async def test_a_reply_of_a_chat_client_is_left_out(lab: Lab, run_id: str) -> None:
    reply = PersonReply(wait_id="2:c1", approved=False)
    assert await send_replies(Overtaken(lab.client, "agents"), ANYBODY, run_id, [reply]) == ("2", {WaitingCall("c1")})


async def test_a_form_of_an_mcp_client_is_left_out(lab: Lab, run_id: str) -> None:
    runs = Overtaken(lab.client, "agents")
    waiting = await runs.pending(ANYBODY, run_id)
    form = types.ElicitResult(action="accept", content={"decision": "approve"})
    await submit_forms(runs, ANYBODY, waiting, {f"{run_id}/c1": form})
    [step, _] = (await runs.steps(ANYBODY, run_id, 0, 10))["steps"]
    assert [each["decision"]["decision"] for each in step["tool_calls"]] == ["deny"]
