"""`mulligan doctor`, as a process, with a real server, worker, model endpoint and OTLP receiver."""

from __future__ import annotations

import json
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mulligan.devserver import DevServer
from mulligan.doctor.temporal_server import check_clock
from tests.support.command_fixtures import Outcome, Run
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.temporal import connect_to

NOWHERE = "127.0.0.1:9"
KEY = "sk-very-secret-4711"
AGENTS = """
from mulligan import Agent, Model, tool

@tool(task_queue="doctors-gpu")
def embed(text: str) -> str: ...

away = Model("openai-chat@away:m", base_url="http://127.0.0.1:9/v1", api_key_env="KEY_OF_AWAY")
shop = Agent(name="shop", model=["openai-chat:known", "openai:unknown", "scripted:echo", away], tools=[embed])
"""


def states(ran: Outcome) -> dict[str, tuple[str, str]]:
    """The state and the text of each check of `--json`; with several findings, those of the last one."""
    found: list[dict[str, Any]] = json.loads(ran.out)
    assert all(finding["text"] and "\n" not in finding["text"] for finding in found)
    assert not any("Traceback" in finding["text"] for finding in found)
    return {finding["check"]: (finding["state"], finding["text"]) for finding in found}


async def test_all_is_well_beside_a_worker_with_the_same_modules(mulligan: Run, worker: Process) -> None:
    """Exit code 0, and a line for each check."""
    ran = await mulligan("doctor", "--load", "tests.acceptance.support_agent,examples.research_team", OPENAI_API_KEY=KEY,
                         OPENAI_BASE_URL=f"http://{NOWHERE}/v1")  # fmt: skip
    words = [line.split(maxsplit=1) for line in ran.out.splitlines()]
    states = {line[1].split("  ")[0].strip(): line[0] for line in words}
    assert {name: state for name, state in states.items() if state != "ok"} == {"openai-chat:nobody": "problem"}
    assert {
        "versions",
        "agents",
        "server",
        "namespace",
        "search",
        "clock",
        "queue acceptance",
        "scripted:support",
        "otlp",
    } <= states.keys()
    assert ran.code == 1
    ran = await mulligan("doctor")
    assert ran.code == 0, ran.out
    assert "worker has polled it in the last 70 s" in ran.out


async def test_each_fault_is_one_line_that_says_what_to_do(
    mulligan: Run, worker: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of settings, workers, models and exports; the key is not printed."""
    (tmp_path / "doctor_shop.py").write_text(AGENTS)
    async with OpenAIServer() as endpoint, OtlpReceiver() as receiver:
        endpoint.script("known", [Turn("x")])
        given = {
            **endpoint.environment(), **receiver.environment(), "OPENAI_API_KEY": KEY, "PYTHONPATH": str(tmp_path),
            "MULLIGAN_TASK_QEUE": "x", "MULLIGAN_JAEGER_URL": f"http://{NOWHERE}",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://{NOWHERE}",
        }  # fmt: skip
        ran = await mulligan("doctor", "--load", "doctor_shop", "--json", **given)
        found = states(ran)
    assert ran.code == 1
    assert KEY not in ran.out + ran.err
    assert found["settings"] == (
        "warning",
        "MULLIGAN_TASK_QEUE is not a setting and has no effect; did you mean MULLIGAN_TASK_QUEUE?",
    )
    assert found["agents"][0] == "warning"
    assert "tool 'embed' has no description" in found["agents"][1]
    assert found["queue acceptance"][0] == "warning"
    assert "none of its workers serves exactly shop; give this command" in found["queue acceptance"][1]
    assert found["queue doctors-gpu"][0] == "problem"
    assert "`mulligan worker --load MODULE --task-queue doctors-gpu`" in found["queue doctors-gpu"][1]
    assert found["openai-chat:known"] == ("ok", "its endpoint answers and takes the key")
    assert found["openai:unknown"][0] == "warning"
    assert "does not list this model; it lists 1: known" in found["openai:unknown"][1]
    assert found["openai-chat@away:m"] == ("problem", "KEY_OF_AWAY is not set here")
    assert found["scripted:echo"] == ("ok", "is loaded")
    assert found["otlp traces"][0] == "ok"
    assert found["otlp metrics"][0] == "problem"
    assert found["jaeger"][0] == "problem"
    assert "MULLIGAN_JAEGER_URL" in found["jaeger"][1]


async def test_without_a_server_or_with_a_wrong_key_the_other_checks_are_made_all_the_same(mulligan: Run) -> None:
    """A refused key, an endpoint without a list of models, no server, no namespace."""

    async def answer(request: web.Request) -> web.Response:
        if request.headers["Authorization"] == f"Bearer {KEY}":
            return web.json_response({"error": {"message": f"Incorrect API key: {KEY}"}}, status=401)
        return web.json_response({"error": {"message": "no such path"}}, status=404)

    runner = web.AppRunner(web.Application())
    runner.app.router.add_get("/v1/models", answer)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        ran = await mulligan("doctor", "--json", TEMPORAL_ADDRESS=NOWHERE, OPENAI_API_KEY=KEY, OPENAI_BASE_URL=base)
        found = states(ran)
        assert ran.code == 1
        assert KEY not in ran.out + ran.err
        assert found["server"][0] == "problem"
        assert f"no Temporal server answers at {NOWHERE} (Connection refused)" in found["server"][1]
        assert found["openai"][0] == "problem"
        assert "401" in found["openai"][1]
        ran = await mulligan("doctor", "--json", TEMPORAL_NAMESPACE="nope", OPENAI_API_KEY="x", OPENAI_BASE_URL=base)
        found = states(ran)
        assert found["namespace"][0] == "problem"
        assert "temporal operator namespace create -n nope" in found["namespace"][1]
        assert found["openai"] == ("ok", "its endpoint answers; it has no list of models, so the name was not checked")
    finally:
        await runner.cleanup()


AGENT = "from mulligan import Agent\n"
WRONG = {
    "syntax": (AGENT + "a = Agent(name='a' model='scripted:x')\n", "wrong_syntax.py, line 2: invalid syntax"),
    "package": ("import no_such_package\n", "module 'wrong_package' imports 'no_such_package', which is not installed; add its package: uv add PACKAGE."),
    "name": ("from mulligan import Agnet\n", "wrong_name.py, line 1): ImportError: cannot import name 'Agnet'"),
    "setting": ("import os\nos.environ['NO_SUCH_KEY']\n", "wrong_setting.py, line 2): KeyError: 'NO_SUCH_KEY'"),
    "twice": (AGENT + "a = Agent(name='a', model='scripted:x')\nb = Agent(name='a', model='scripted:x')\n",
              "wrong_twice.py: two agents are named 'a'; give one another name."),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
async def test_a_module_that_cannot_be_loaded_is_one_sentence_with_its_line(
    mulligan: Run, tmp_path: Path, fault: str
) -> None:
    source, sentence = WRONG[fault]
    (tmp_path / f"wrong_{fault}.py").write_text(source)
    ran = await mulligan("doctor", "--load", f"wrong_{fault}", PYTHONPATH=str(tmp_path))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert sentence in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


async def test_a_module_without_an_agent_is_a_warning(mulligan: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong_empty.py").write_text(AGENT + "def build() -> Agent: ...\n")
    ran = await mulligan(
        "doctor", "--load", "wrong_empty", "--json", PYTHONPATH=str(tmp_path), TEMPORAL_ADDRESS=NOWHERE
    )
    assert states(ran)["agents"][0] == "warning"
    assert "wrong_empty.py: the module has no agent" in states(ran)["agents"][1]


@pytest.mark.parametrize("shift", [0, 60, -60])
async def test_a_clock_that_differs_from_the_servers_is_reported(
    temporal: DevServer, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    """By how much, and in which direction."""
    import datetime as real

    class Shifted(real.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real.datetime.now(tz) + real.timedelta(seconds=shift)

    monkeypatch.setattr("mulligan.doctor.temporal_server.datetime", Shifted)
    (finding,) = await check_clock(await connect_to(temporal))
    expected = {0: "differs from the server's by less than 2 s", 60: "60 s ahead of", -60: "60 s behind"}
    assert expected[shift] in finding.text
    assert finding.state == ("ok" if shift == 0 else "warning")
