"""Cases of all kinds of mistakes are replayed. That runs on a server are exported: tests/live/test_cases.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from temporalio.client import WorkflowExecutionStatus

from mulligan.client.export_case import export_case
from mulligan.testing import Case, CaseError, load_case, replay
from mulligan.testing.replay_case import _compare_tools
from mulligan.wire.agent_facts import ToolDefinition
from mulligan.worker.loading import load
from tests.promise.test_recovery import ROWS
from tests.promise.test_structured_output import ROWS as OUTPUTS
from tests.support import shop_agents, structured_output_agents
from tests.support.lab import Ran
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.shop_agents import RAN

LOADED = load([each.__name__ for each in (shop_agents, structured_output_agents)])


@pytest.fixture(scope="module")
async def shop(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, LOADED) as at:
        yield at


async def exported(ran: Ran, file: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """The case of a run, through a file. What only a server knows of it, its ids and its status, is given."""
    described = SimpleNamespace(id=ran.id, run_id="run", status=WorkflowExecutionStatus.COMPLETED, task_queue="agents")
    monkeypatch.setattr("mulligan.client.export_case.describe_existing", AsyncMock(return_value=described))
    client: Any = SimpleNamespace(get_workflow_handle=lambda _, **__: ran.handle)
    file.write_text((await export_case(client, ran.id)).model_dump_json())
    return load_case(file)


@pytest.mark.parametrize("row", [*ROWS, *OUTPUTS], ids=lambda row: row.name)
async def test_the_same_code_replays_each_kind_of_mistake(
    shop: MemoryLab, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the model and the tools did wrong: the same steps, and no tool runs."""
    ran = await shop.run(row.said, agent=row.agent, api=row.api)
    case = await exported(ran, tmp_path / "case.json", monkeypatch)
    if row.name == "megabytes":
        with pytest.raises(CaseError, match=r"the arguments of the call '\w+' in step 1 were too long to be kept\.$"):
            await replay(case, LOADED.registry.agents[row.agent])
        return
    before = {each: len(calls) for each, calls in RAN.items()}
    run = await replay(case, LOADED.registry.agents[row.agent])
    assert {each: len(calls) for each, calls in RAN.items()} == before
    assert run.result is not None
    assert run.result.model_dump()["output"] == ran.result["output"] == case.output
    assert run.messages == case.messages


DEEP = {"type": "object", "properties": {f"field{n}": {"type": "string"} for n in range(30)}}
TOOLS = [ToolDefinition(name=name, description="Do it.", parameters=DEEP) for name in ("find", "pay", "send")]


def changed(**update: Any) -> list[ToolDefinition]:
    return [TOOLS[0], TOOLS[1].model_copy(update=update), TOOLS[2]]


OTHER = {**DEEP, "properties": {**DEEP["properties"], "field29": {"type": "integer"}}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (changed(parameters=OTHER), "The fields of the tool 'pay' are not those of the case:"),
        (changed(description="Pay."), "The fields of the tool 'pay' are not those of the case:"),
        (changed(strict=True), "The fields of the tool 'pay' are not those of the case:"),
        (changed(name="buy"), "-pay\n+buy"),
        (TOOLS[:2], "-send"),
        (TOOLS[1:], "-find"),
        ([*TOOLS, TOOLS[0].model_copy(update={"name": "new"})], "+new"),
        ([TOOLS[2], *TOOLS[:2]], "+send\n find"),
    ],
)
def test_a_difference_of_tools_names_the_tool(now: list[ToolDefinition], told: str) -> None:
    """Also one far below its name."""
    _compare_tools(TOOLS, TOOLS)
    with pytest.raises(AssertionError) as raised:
        _compare_tools(TOOLS, now)
    assert told in str(raised.value)
