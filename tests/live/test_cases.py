"""Cases: runs that are exported to a file, and replayed without a server by the agent's code of the moment."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, ToolContext, connect, fork_run, tool
from mulligan.client.export_case import ExportError, export_case
from mulligan.client.origins.run_state import RunNotFoundError
from mulligan.devserver import DevServer
from mulligan.testing import Case, CaseError, load_case, replay
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from tests.promise.recovery_matrix import observe
from tests.promise.test_people import REFUND, pending
from tests.promise.test_recovery import ROWS
from tests.promise.test_structured_output import ROWS as OUTPUTS
from tests.support import compaction_agents, people_agents, shop_agents, structured_output_agents
from tests.support.app_command import app_command  # noqa: F401 - a fixture
from tests.support.compaction_agents import PROMPT, READ, reading
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN

ROOT = Path(__file__).parents[2]
ADA = '{"customer": "Ada"}'
AGENTS = load(
    [each.__name__ for each in (shop_agents, structured_output_agents, people_agents, compaction_agents)]
).registry.agents


def test_the_schema_of_a_case_is_in_the_docs() -> None:
    """Whoever changes a field writes it again, with a new version if older cases cannot be read."""
    schema = open_to_new_fields(Case.model_json_schema(mode="serialization"))
    written = json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
    assert (ROOT / "docs/case.schema.json").read_text() == written


def open_to_new_fields(schema: Any) -> Any:
    """The schema as readers of cases apply it: later versions add fields, also to a run's input."""
    if isinstance(schema, list):
        return [open_to_new_fields(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if (key, value) != ("additionalProperties", False)}
    return {key: open_to_new_fields(value) for key, value in kept.items()}


@pytest.fixture(scope="module")
async def chained(lab: Lab, chain_server: DevServer) -> AsyncIterator[Lab]:
    """A server on which runs continue as new after a few steps."""
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"case-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load(["tests.support.compaction_agents"]), lab.telemetry, at.task_queue):
        yield at


async def exported(lab: Lab, ran: Ran, folder: Path) -> Case:
    """The case of a run, through a file."""
    file = folder / "case.json"
    file.write_text((await export_case(lab.client, ran.id)).model_dump_json())
    return load_case(file)


LIVE = ("unknown name", "cut-off JSON", "a model by a call")
"""All of them, without a server: tests/unit/test_replayed_cases.py."""


@pytest.mark.parametrize("row", [row for row in [*ROWS, *OUTPUTS] if row.name in LIVE], ids=lambda row: row.name)
async def test_the_same_code_replays_a_mistake(lab: Lab, row: Any, tmp_path: Path) -> None:
    """The same steps, and no tool runs."""
    ran = await observe(lab, row, row.api)
    case = await exported(lab, ran, tmp_path)
    before = {each: len(calls) for each, calls in RAN.items()}
    run = await replay(case, AGENTS[row.agent])
    assert {each: len(calls) for each, calls in RAN.items()} == before
    assert run.result is not None
    assert run.result.model_dump()["output"] == ran.result["output"] == case.output
    assert run.messages == case.messages


async def test_the_command_prints_a_case(lab: Lab, command: Any, tmp_path: Path) -> None:
    """It has what the contract names; control characters are JSON's escapes, so that the file is what the run was."""
    ran = await lab.run([call("search_orders", '{"customer": "A\\u001bda"}', "c1"), DONE], prompt="Where? \x1b[2J")
    code, out, _ = await command("export", ran.id)
    case = json.loads(out)
    assert (code, "\x1b" in out) == (0, False)
    names = {"version", "agent", "input", "instructions", "tools", "output", "settings", "messages", "steps"}
    assert names <= case.keys()
    assert (case["version"], case["agent"], case["output"], case["status"]) == (1, "shop", "done", "completed")
    assert (case["id"], case["run_id"]) == (ran.id, ran.handle.first_execution_run_id)
    assert case["input"]["prompt"] == "Where? \x1b[2J"
    assert case["steps"] == ran.steps
    assert [each["name"] for each in case["tools"]][:2] == ["search_orders", "click"]
    (tmp_path / "case.json").write_text(out)
    await replay(load_case(tmp_path / "case.json"), AGENTS["shop"])


async def test_a_difference_is_shown_where_it_begins(lab: Lab, tmp_path: Path) -> None:
    """Instructions, tools, what the model is told, calls without a record, and the end: a unified diff or a sentence."""
    at = replace(lab, task_queue=f"case-{uuid.uuid4().hex[:6]}", workers=None)
    clerk = Agent(name="clerk", model="openai-chat:none", instructions="Be kind.\nBe quick.", tools=[weigh])
    async with running_worker(at.client, load_agents([clerk], []), lab.telemetry, at.task_queue):
        turns = [call("weigh", '{"what": "tea", "unit": "g"}', "c1"), Turn(calls=[("wiegh", "{}", "c2")]), DONE]
        case = await exported(at, await at.run(turns, agent="clerk"), tmp_path)
    await replay(case, clerk)
    with pytest.raises(AssertionError) as error:
        await replay(case, replace(clerk, instructions="Be kind.\nBe slow."))
    assert str(error.value).splitlines() == [
        "The instructions are not those of the case:",
        "--- in the case",
        "+++ now",
        "@@ -1,2 +1,2 @@",
        " Be kind.",
        "-Be quick.",
        "+Be slow.",
    ]
    with pytest.raises(AssertionError, match=r"(?s)^The fields of the tool 'weigh' are not .*\+.*Weigh it\."):
        await replay(case, replace(clerk, tools=[other_weigh]))
    told = case.model_copy(deep=True)
    told.messages[4].text = "Something else."
    with pytest.raises(
        AssertionError, match=r"(?s)^The messages before step 3 .*\n-  Something else\.\n\+  There is no"
    ):
        await replay(told, clerk)
    other = case.model_copy(deep=True)
    other.steps[0].tool_calls[0].arguments = {"what": "salt", "unit": "g"}
    with pytest.raises(AssertionError, match=r"a call that the case does not have: Step 1 would have called `weigh`"):
        await replay(other, clerk)
    with pytest.raises(AssertionError, match=r"^The run ends \(max_steps\) after 2 steps; the case has 3 and ends"):
        await replay(case, replace(clerk, max_steps=2))
    with pytest.raises(AssertionError, match=r"(?s)^The output .*\n-never\n\+done"):
        await replay(case.model_copy(update={"output": "never"}), clerk)
    short = case.model_copy(update={"steps": case.steps[:2], "messages": case.messages[:5]})
    with pytest.raises(AssertionError, match=r"(?s)^The model would be called after step 2, with which the case ends"):
        await replay(short, clerk)


@tool
def weigh(what: str, unit: str, ctx: ToolContext) -> str:
    """Weigh something."""
    assert ctx.workflow_id.startswith("run-"), "it runs in the replay"
    return f"7 {unit} of {what}"


@tool(name="weigh")
def other_weigh(what: str, unit: str) -> str:
    """Weigh it."""
    return f"7 {unit} of {what}"


async def test_people_need_not_answer_again(lab: Lab, tmp_path: Path) -> None:
    """Approvals with edits, denials and answers are those of the case."""
    refused = call("refund", '{"order": 9, "amount": {"euros": 1}}')
    turns = [call("refund", REFUND), refused, call("ask_person", '{"question": "Red?"}'), DONE]
    handle = await lab.start(turns, agent="desk")
    edited = {"decision": "approve", "by": "Ada", "arguments": {"order": 7, "amount": {"euros": 5}}}
    for decision in (edited, {"decision": "deny", "reason": "No."}):
        [waiting] = await pending(handle)
        await handle.execute_update("decide", {"call_id": waiting["call_id"], **decision})
    [waiting] = await pending(handle)
    await handle.execute_update("answer", {"call_id": waiting["call_id"], "text": "Blue."})
    case = await exported(lab, await lab.look(handle), tmp_path)
    run = await replay(case, AGENTS["desk"])
    assert [each.decision for each in run.calls] == [each.decision for step in case.steps for each in step.tool_calls]


async def test_a_run_that_was_compacted_and_continued_is_a_whole_case(chained: Lab, tmp_path: Path) -> None:
    """Compactions happen in the replay where they happened, with their summaries."""
    ran = await chained.run(reading(14), agent="page_reader", prompt=PROMPT)
    case = await exported(chained, ran, tmp_path)
    assert (len(case.steps), case.steps[0].step, case.messages[0].text) == (15, 1, PROMPT)
    run = await replay(case, AGENTS["page_reader"])
    compactions = [each.compaction and each.compaction.text for each in case.steps]
    assert len([each for each in compactions if each]) > 1
    assert [each.compaction and each.compaction.text for each in run.steps] == compactions
    assert not [key for key in READ if key.startswith("test-")]


async def test_a_fork_and_a_continued_run_are_cases_of_their_own_steps(lab: Lab, tmp_path: Path) -> None:
    """What came before is in the input, and is not replayed."""
    ran = await lab.run([call("now"), call("search_orders", ADA), DONE], max_steps=9)
    handle = await fork_run(lab.client, ran.id, at=2, edits={"message": "Hurry."})
    case = await exported(lab, await lab.look(handle), tmp_path)
    assert ([step.step for step in case.steps], case.input.prompt, len(case.input.messages)) == ([2, 3], "Hurry.", 3)
    run = await replay(case, AGENTS["shop"])
    assert (len(run.steps), run.messages) == (2, case.messages)


async def test_what_is_no_case_of_the_agent_is_refused_with_a_sentence(lab: Lab, tmp_path: Path) -> None:
    ran = await lab.run([call("now"), DONE])
    case = await exported(lab, ran, tmp_path)
    with pytest.raises(CaseError, match=rf"^The case '{ran.id}' is of the agent 'shop', not of 'desk'\.$"):
        await replay(case, AGENTS["desk"])
    whole = (tmp_path / "case.json").read_text()
    fields = json.loads(whole)
    for text, sentence in {
        whole[:-100]: "is not JSON",
        "": "is empty",
        "[]": "is not a case: it must be one JSON object",
        "{}": "is a case of version null; this Mulligan reads version 1",
        json.dumps({**fields, "version": 2}): "is a case of version 2; this Mulligan reads version 1",
        json.dumps({**fields, "agent": 7}): "is not a case: 'agent': it must be a string",
        json.dumps({**fields, "messages": fields["messages"][:1]}): "is not a whole case: it has 2 steps, but fewer",
        "[" * 200: "is nested too deeply",
    }.items():
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(CaseError, match=r"bad\.json") as error:
            load_case(tmp_path / "bad.json")
        assert sentence in str(error.value)
    with pytest.raises(CaseError, match="cannot be read: No such file"):
        load_case(tmp_path / "none.json")


async def test_what_cannot_be_exported_is_refused_with_a_sentence(lab: Lab, command: Any, tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="There is no run 'nobody' on this server"):
        await export_case(lab.client, "nobody")
    handle = await lab.start([call("ask_person", '{"question": "Red?"}'), DONE], agent="desk")
    [waiting] = await pending(handle)
    with pytest.raises(ExportError, match="is open; a case has an end"):
        await export_case(lab.client, handle.id)
    await handle.execute_update("send_message", {"text": "Hurry."})
    await handle.execute_update("answer", {"call_id": waiting["call_id"], "text": "Blue."})
    case = await exported(lab, await lab.look(handle), tmp_path)
    with pytest.raises(CaseError, match="has a message that was sent to the run after step 1, while it was open"):
        await replay(case, AGENTS["desk"])
    code, out, err = await command("export", handle.id, "--content", str(tmp_path / "there"))
    assert (code, out, "no content storage is configured" in err) == (2, "", True)
    unknown = await lab.client.start_workflow(
        "AgentWorkflow", {"agent": "none", "prompt": "?"}, id=f"none-{uuid.uuid4().hex[:6]}", task_queue=lab.task_queue
    )
    await asyncio.wait([asyncio.ensure_future(unknown.result())])
    with pytest.raises(ExportError, match="never began"):
        await export_case(lab.client, unknown.id)


async def test_the_test_of_the_page_passes_and_fails_after_a_change(lab: Lab, tmp_path: Path) -> None:
    """docs/cases.md, run by pytest as a user would, with the case of a run of its agent."""
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/cases.md").read_text(), re.DOTALL)
    [change] = re.findall(r"```text\n(.*?)```", (ROOT / "docs/cases.md").read_text(), re.DOTALL)
    page: dict[str, Any] = {"__name__": "page"}
    exec(compile(block.partition("@pytest")[0], "docs/cases.md", "exec"), page)
    at = replace(lab, task_queue=f"case-{uuid.uuid4().hex[:6]}", workers=None)
    async with running_worker(at.client, load_agents([page["support"]], []), lab.telemetry, at.task_queue):
        turns = [call("cancel_order", '{"order_id": 7}'), Turn(text="It is cancelled.")]
        case = await export_case(at.client, (await at.run(turns, agent="support")).id)
    (tmp_path / "tests/cases").mkdir(parents=True)
    (tmp_path / "tests/cases/refund.json").write_text(case.model_dump_json())
    (tmp_path / "test_page.py").write_text(block)
    (tmp_path / "test_changed.py").write_text(block.replace("Cancel an order.", "Cancel an order of the customer."))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "--import-mode=importlib"]
    ran = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stdout
    passed, failed = (re.findall(rf"^{how} (test_\w+)\.py", ran.stdout, re.MULTILINE) for how in ("PASSED", "FAILED"))
    assert (passed, failed) == (["test_page"], ["test_changed"]), ran.stdout
    assert all(line in ran.stdout for line in change.splitlines())
