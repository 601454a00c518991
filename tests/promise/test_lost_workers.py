"""kill -9 during a tool call: it is reported to the model or retried by another worker; the run goes on either way."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

from temporalio.service import RPCError

from mulligan.devserver import DevServer
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.own_worker import BOTH_KINDS
from tests.support.worker_process import worker_process


async def kill_in(tool: str, lab: Lab, temporal: DevServer, folder: Path, kind: str) -> Ran:
    """Run an agent whose tool kills its worker; a second worker takes over."""
    queue = f"lost-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    handle = await at.start(
        [call("now"), call(tool, "```json\n{}\n```"), DONE], metadata={"flag": str(folder / f"{tool}.pid")}
    )
    telemetry = lab.otlp.environment("http/protobuf")
    async with worker_process("tests.support.shop_agents", queue, temporal, kind, **telemetry) as first:
        assert await first.wait() == -9
    async with worker_process("tests.support.shop_agents", queue, temporal, kind, **telemetry) as second:
        ran = await at.look(handle)
        second.terminate()
        assert await second.wait() == 0
    # After SIGTERM a worker drains and exports its last spans before it ends.
    ran.spans = lab.otlp.spans(trace_id=ran.result["trace_id"])
    return ran


async def stop_in(tool: str, lab: Lab, temporal: DevServer, folder: Path, kind: str) -> Ran:
    """Send SIGTERM to the worker while a tool runs that takes longer than the grace period of 1 s."""
    queue = f"stop-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    handle = await at.start([call(tool), DONE], metadata={"file": str(folder / "never")})
    telemetry = lab.otlp.environment("http/protobuf")
    async with worker_process("tests.support.shop_agents", queue, temporal, kind, **telemetry) as first:
        while (await _progress(handle)).get("running") != [tool]:
            await asyncio.sleep(0.2)
        first.terminate()
        assert await first.wait() == 0
    async with worker_process("tests.support.shop_agents", queue, temporal, kind, **telemetry) as second:
        ran = await at.look(handle)
        second.terminate()
        assert await second.wait() == 0
    ran.spans = lab.otlp.spans(trace_id=ran.result["trace_id"])
    return ran


async def _progress(handle: Any) -> dict[str, Any]:
    try:
        progress: dict[str, Any] = await handle.query("progress")
    except RPCError:  # no worker polls yet
        return {}
    return progress


@BOTH_KINDS
async def test_a_call_lost_with_its_worker_is_reported_or_retried_as_its_attempts_allow(
    lab: Lab, temporal: DevServer, tmp_path: Path, kind: str
) -> None:
    """By default `tool_lost` is returned to the model; with `attempts=2` the next worker runs the call. The same after a drain."""
    lost, survived, stopped = await asyncio.gather(
        kill_in("die", lab, temporal, tmp_path, kind),
        kill_in("die_once", lab, temporal, tmp_path, kind),
        stop_in("wait_for_file", lab, temporal, tmp_path, kind),
    )
    assert stopped.calls[0]["result"]["error"]["kind"] == "tool_lost"
    [span] = [span for span in stopped.spans_of("ai.toolCall") if span.status == "ERROR"]
    assert (span.attributes["error.type"], span.attributes["mulligan.recovered"]) == ("tool_lost", True)
    assert lost.calls[1]["result"]["error"]["kind"] == "tool_lost"
    assert "It may or may not have done its work." in lost.calls[1]["result"]["text"]
    assert lost.result["recovered_failures"] == 1
    [span] = [span for span in lost.spans_of("ai.toolCall") if span.status == "ERROR"]
    assert (span.attributes["error.type"], span.attributes["mulligan.recovered"]) == ("tool_lost", True)
    assert list(span.attributes["mulligan.repairs"]) == ["json:code_fence"]
    assert survived.calls[1]["result"] == {"text": "survived", "error": None}
    assert survived.calls[1]["attempts"] == 2
    attempts = [span for span in survived.spans_of("ai.toolCall") if span.attributes["ai.toolCall.name"] == "die_once"]
    assert sorted(
        (s.attributes["mulligan.attempt"], s.status, s.attributes["mulligan.recovered"]) for s in attempts
    ) == [
        (1, "ERROR", False),
        (2, "UNSET", False),
    ]
    assert [list(span.attributes["mulligan.repairs"]) for span in attempts] == [["json:code_fence"]] * 2
    for ran in (lost, survived, stopped):
        assert ran.result["output"] == "done"
        ids = {span.span_id for span in ran.spans}
        assert len(ids) == len(ran.spans)
        assert all(span.parent_span_id in ids for span in ran.spans if span.name != "invoke_agent shop")
