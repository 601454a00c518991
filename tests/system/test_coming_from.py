"""docs/coming-from.md: both sides of each diff run, with the versions that the page names, against one scripted model."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mulligan import Call, Decide, Pending, Say
from mulligan.testing import ScriptedModel, run_agent, when_told
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import Lab
from tests.support.node_packages import npm_install
from tests.support.openai_server import OpenAIServer, Recorded, Refusal
from tests.support.openai_turn import Turn
from tests.support.own_environment import own_environment
from tests.system.test_adopt import installed

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/coming-from.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
ANSWER = {"text": "You get it back.", "refunded": 12.5}
ON_TEMPORAL = {"From openai-agents with Temporal": "openai_agents", "From pydantic-ai with Temporal": "pydantic_ai"}
MODEL = "gpt-5-mini"


def blocks(title: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[title], re.DOTALL)


@dataclass(frozen=True)
class Change:
    """Both sides of a diff that has the whole program."""

    before: str
    after: str


def change(title: str) -> Change:
    lines = blocks(title, "diff")[0].splitlines()
    assert all(line[:1] in {"", " ", "+", "-"} for line in lines)
    sides = ("\n".join(line[1:] for line in lines if line[:1] != other) + "\n" for other in "+-")
    return Change(*sides)


def answers(request: dict[str, Any], number: int) -> Turn:
    """The model of all of them: it looks the order up, refunds it, and answers with the type, as each library asks for it."""
    if number < 2:
        return Turn(
            calls=[("order_status", '{"order_id": 7}', "c1"), ("refund", '{"order_id": 7, "euros": 12.5}', "c2")][
                number : number + 1
            ]
        )
    names = {tool.get("name") or tool["function"]["name"] for tool in request.get("tools", [])}
    outputs = [name for name in names if name in {"Answer", "final_result", "final_result_Answer"}]
    if outputs:
        return Turn(calls=[(outputs[0], json.dumps(ANSWER), "c3")])
    return Turn(text=json.dumps(ANSWER))


class AnyStore(OpenAIServer):
    """A server that takes requests which OpenAI shall store, as other libraries send them."""

    def _examine(self, method: str, recorded: Recorded) -> Refusal | None:
        refusal = super()._examine(method, recorded)
        return None if refusal is not None and "'store'" in refusal.message else refusal


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with AnyStore() as server:
        server.script(MODEL, answers)
        yield server


async def python_of(title: str) -> Path:
    """The Python of an environment with the packages that a section names."""
    packages = re.findall(r"`([a-z-]+(?:\[[\w,]+\])?==[\d.]+)`", SECTIONS[title])
    assert packages
    name = re.sub(r"\W+", "-", title.lower())
    return (
        await own_environment(name, "-".join(re.findall(r"==([\d.]+)", " ".join(packages))), *packages) / "bin/python"
    )


@asynccontextmanager
async def program(python: Path, file: Path, server: OpenAIServer) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program, which is ended if it has not ended by itself."""
    kept = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    # Their imports in the sandbox take more than 2 s on a busy machine: without this, the SDK tries such a task for ever.
    settings = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "TEMPORAL_DEBUG": "1", **server.environment()}
    with (file.parent / "stderr").open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            str(python), str(file), env=kept | settings, cwd=file.parent, stdout=asyncio.subprocess.PIPE, stderr=err
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_mulligans_agent_looks_up_asks_a_person_and_answers_with_a_type() -> None:
    agent_code, client_code = blocks("With Mulligan")
    page: dict[str, Any] = {"__name__": "page"}
    exec(compile(agent_code, "docs/coming-from.md", "exec", dont_inherit=True), page)
    exec(compile(client_code, "docs/coming-from.md", "exec", dont_inherit=True), page)
    model = ScriptedModel(
        Say(calls=[Call("order_status", {"order_id": 8})]),
        when_told("There is no order 8.", Say(calls=[Call("order_status", {"order_id": 7})])),
        when_told("lost", Say(calls=[Call("refund", {"order_id": 7, "euros": 12.5})])),
        when_told("Paid 12.5 euros.", Say(calls=[Call("Answer", ANSWER)])),
    )

    def ada(wait: Pending) -> Decide:
        assert wait.tool == "refund"
        return Decide(call_id=wait.call_id, decision="approve", by="Ada")

    run = await run_agent(page["support"], "My order is lost.", model=model, person=ada)
    assert run.output.model_dump() == ANSWER


def test_each_diff_leads_to_the_program_with_mulligan() -> None:
    [with_mulligan, _] = blocks("With Mulligan")
    assert [change(title).after == with_mulligan for title in (*ON_TEMPORAL, "From LangGraph")] == [True] * 3


async def test_the_program_with_mulligan_answers_on_temporal(
    lab: Lab, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the others, which the tests below run."""
    name = f"shop_{uuid.uuid4().hex[:6]}"
    (tmp_path / f"{name}.py").write_text(blocks("With Mulligan")[0])
    monkeypatch.syspath_prepend(tmp_path)
    for variable, value in server.environment().items():
        monkeypatch.setenv(variable, value)
    async with running_worker(lab.client, load([name]), lab.telemetry, name):
        given = {"agent": "support", "prompt": "Where is order 7?"}
        run = await lab.client.start_workflow("AgentWorkflow", given, id=name, task_queue=name)
        while not (waits := await run.query("pending")):
            await asyncio.sleep(0.05)
        await run.execute_update("decide", {"call_id": waits[0]["call_id"], "decision": "approve"})
        assert (await run.result())["output"] == ANSWER
    assert server.refusals == []


@pytest.mark.parametrize("title", ON_TEMPORAL)
async def test_the_program_before_answers_on_temporal(
    lab: Lab, server: OpenAIServer, tmp_path: Path, title: str
) -> None:
    """A worker of its own, in an environment of its own; the person approves by the signal."""
    queue = f"before-{uuid.uuid4().hex[:6]}"
    address = lab.client.service_client.config.target_host
    code = change(title).before
    assert '"localhost:7233"' in code
    code = code.replace('"localhost:7233"', f'"{address}", namespace="{lab.client.namespace}"')
    (tmp_path / "theirs.py").write_text(code.replace('task_queue="agents"', f'task_queue="{queue}"'))
    async with program(await python_of(title), tmp_path / "theirs.py", server) as worker:
        run = await lab.client.start_workflow("Support", "Where is order 7?", id=queue, task_queue=queue)
        await run.signal("approve")
        ended = asyncio.ensure_future(run.result())
        died = asyncio.ensure_future(worker.wait())
        await asyncio.wait({ended, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        assert ended.done(), (tmp_path / "stderr").read_text()[-3_000:]
        assert await ended == ANSWER


async def test_the_langgraph_before_answers(server: OpenAIServer, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(change("From LangGraph").before)
    async with program(await python_of("From LangGraph"), tmp_path / "theirs.py", server) as ran:
        out, _ = await ran.communicate()
        assert ran.returncode == 0, (tmp_path / "stderr").read_text()[-3_000:]
    assert json.loads(out) == ANSWER


async def test_an_adopted_agent_answers_as_before(server: OpenAIServer, tmp_path: Path) -> None:
    """The one line is all that there is to write; with Mulligan, `run_agent` takes the place of the worker."""
    server.script(MODEL, lambda _request, number: answers({}, 0) if number == 0 else Turn(text="It is lost."))
    [title] = [title for title in SECTIONS if title.endswith(": adopt")]
    [(package, version)] = re.findall(r"`([a-z-]+)==([\d.]+)`", SECTIONS[title])
    python = await installed(package.replace("-", "_"), version)
    sides = change(title)
    runs = "import asyncio\n"
    (tmp_path / "before.py").write_text(f"{runs}{sides.before}\nasyncio.run(main())\n")
    (tmp_path / "after.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{runs}{sides.after}\n"
        "from mulligan import Call, Say\nfrom mulligan.testing import ScriptedModel, run_agent\n"
        "model = ScriptedModel(Say(calls=[Call('order_status', {'order_id': 7})]), 'It is lost.')\n"
        "run = asyncio.run(run_agent(support, 'Where is order 7?', model=model))\n"
        "assert [call.result.text for call in run.calls] == ['lost'], run.calls\nprint(run.output)\n"
    )
    for name in ("before.py", "after.py"):
        async with program(python, tmp_path / name, server) as ran:
            out, _ = await ran.communicate()
            assert (ran.returncode, out) == (0, b"It is lost.\n"), (tmp_path / "stderr").read_text()[-3_000:]


async def test_the_durable_agent_of_vercel_type_checks(tmp_path: Path) -> None:
    """With the packages that the page names, in strict mode; and both lines of the diff of the chat page."""
    packages = json.loads((ROOT / "tests/support/workflow_sdk/package.json").read_text())["dependencies"]
    section = SECTIONS["From Vercel's DurableAgent"]
    named = re.findall(r"`(@workflow/ai|workflow|ai)` ([\d.]+\d)", section)
    assert {name: packages[name] for name, _ in named} == dict(named)
    assert len(named) == 3
    [agent] = blocks("From Vercel's DurableAgent", "ts")
    made = re.findall(r"transport: (new .+),\n", blocks("From Vercel's DurableAgent", "diff")[0])
    assert len(made) == 2
    folder = await npm_install(ROOT / "tests/support/workflow_sdk")
    options = {"target": "ES2022", "module": "ESNext", "moduleResolution": "Bundler", "strict": True, "noEmit": True,
               "skipLibCheck": True, "lib": ["ES2022", "DOM"], "types": []}  # fmt: skip
    (tmp_path / "node_modules").symlink_to(folder / "node_modules")
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["agent.ts", "page.ts"]}))
    (tmp_path / "page.ts").write_text(
        'import { WorkflowChatTransport } from "@workflow/ai";\nimport { DefaultChatTransport } from "ai";\n'
        f"export const before = {made[0]};\nexport const after = {made[1]};\n"
    )
    for fault, code in (("", 0), ('\nexport const wrong: number = "text";\n', 2)):
        (tmp_path / "agent.ts").write_text(agent + fault)
        checked = await asyncio.create_subprocess_exec(
            "node", str(folder / "node_modules/typescript/bin/tsc"), "-p", str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await checked.communicate()
        assert checked.returncode == code, out.decode()


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of the table whose first line contains a text."""
    lines = text[text.index(first) :].splitlines()
    lines[0] = f"|{lines[0]}" if not lines[0].startswith("|") else lines[0]
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table if not set(line) <= set("|-: ")]


def test_the_figures_are_those_of_the_benchmarks() -> None:
    """The sentence on kills is made of those of docs/reliability.md."""
    reliability = (ROOT / "docs/reliability.md").read_text()
    section = reliability[reliability.index("## The same kills for others") :]
    [header, *all_rows] = rows(section, "| | kills |")
    figures = {row[0]: dict(zip(header, row, strict=True)) for row in all_rows}
    repeated = [
        int(each["effects repeated"]) for name, each in figures.items() if name.endswith("default retry policy")
    ]
    failed = {name: int(each["runs failed"]) for name, each in figures.items() if name.endswith("one attempt")}
    strands = failed.pop("Strands Agents, `pay` with one attempt")
    told = " ".join(TEXT.split())
    ours = figures["Mulligan"]
    assert f"Eight runs of 40 steps with up to {ours['kills']} kills" in told
    assert f"Mulligan repeated {ours['effects repeated']} effects and failed {ours['runs failed']} runs" in told
    assert f"The others repeated {min(repeated)} to {max(repeated)} effects" in told
    assert f"{min(failed.values())} to {max(failed.values())} runs failed (with Strands {strands}:" in told
    assert "after 53 calls" in " ".join((ROOT / "docs/adopt.md").read_text().split())
