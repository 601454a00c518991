"""Each command: its output on stdout and stderr, and its exit code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

import mulligan as mulligan_package
from mulligan.devserver.dev_server import DevServer
from tests.support.command_fixtures import Run, command
from tests.support.command_server import DEVNULL, PIPE, start_command
from tests.support.content_files import png

Process = asyncio.subprocess.Process
NOWHERE = "127.0.0.1:1"


async def test_start_show_tail_and_list_present_a_run_as_text_and_as_json(
    installed_mulligan: Run, worker: Process
) -> None:
    """From its start to its end."""
    mulligan = installed_mulligan
    waited = await mulligan("start", "support", "What has Ada ordered?", "--id", "a-1", "--wait")
    assert (waited.code, waited.out) == (0, "Ada has order 7.\n")
    assert "returned to the model: invalid_arguments" in waited.err
    again = await mulligan("start", "support", "Hi", "--id", "a-2", "--wait", "--json")
    answer = json.loads(again.out)
    assert (answer["id"], answer["status"], answer["result"]["recovered_failures"]) == ("a-2", "completed", 1)

    show, show_json, tail, listed = await asyncio.gather(
        mulligan("show", "a-1"),
        mulligan("show", "a-1", "--json"),
        mulligan("tail", "a-1", "--json"),
        mulligan("list", "--json"),
    )
    for ran in (show, show_json, tail, listed):
        assert ran.code == 0, ran.err
    assert "✗ search_orders" in show.out, show.err
    assert "✓ search_orders" in show.out
    assert "completed: 3 steps, 2 tool calls, 1 recovered failure, 0 repairs" in " ".join(show.out.split())
    seen: dict[str, Any] = json.loads(show_json.out)
    assert [step["text"] for step in seen["steps"]] == ["Let me look.", "", "Ada has order 7."]
    assert seen["steps"][0]["tool_calls"][0]["result"]["error"]["kind"] == "invalid_arguments"
    assert (seen["status"], seen["progress"]["step"]) == ("completed", 3)
    lines = [json.loads(line) for line in tail.out.splitlines()]
    assert lines[:-1] == seen["steps"]
    assert lines[-1]["status"] == "completed"
    runs = {run["id"]: run for run in json.loads(listed.out)}
    assert (runs["a-1"]["agent"], runs["a-1"]["status"]) == ("support", "completed")


async def test_start_and_send_take_files_and_refuse_those_that_cannot_be_used(
    mulligan: Run, worker: Process, tmp_path: Path
) -> None:
    """A scripted model gets their descriptions."""
    photo, mislabelled = tmp_path / "photo.png", tmp_path / "b.jpg"
    photo.write_bytes(png())
    mislabelled.write_bytes(png())
    start = ("start", "support", "What is this?", "--model", "scripted:echo", "--file", str(photo))
    waited = await mulligan(*start, "--id", "f-1", "--wait")
    assert waited.code == 0, waited.err
    assert "What is this?" in waited.out
    messages = json.loads((await mulligan("show", "f-1", "--json")).out)
    assert messages["status"] == "completed"
    shown = await mulligan("show", "f-1")
    assert "What is this?" in shown.out
    twice = await mulligan(*start, "--file", str(mislabelled))
    assert twice.code == 2
    assert "is image/jpeg by its name, but its bytes are image/png." in twice.err
    large = tmp_path / "large.png"
    large.write_bytes(png(2_000_000))
    refused = await mulligan("start", "support", "Hi", "--file", str(large))
    assert refused.code == 2
    assert "Set MULLIGAN_CONTENT_DIR or MULLIGAN_EXTERNAL_STORAGE" in " ".join(refused.err.split())
    nobody = ("start", "support", "Hi", "--task-queue", "nobody", "--id")
    stored = await mulligan(*nobody, "f-2", "--file", str(large), MULLIGAN_CONTENT_DIR=str(tmp_path / "content"))
    assert stored.code == 0, stored.err
    assert len([path for path in (tmp_path / "content").rglob("*") if path.is_file()]) == 1
    sent = await mulligan("send", "f-2", "And this?", "--file", str(tmp_path / "none.png"))
    assert sent.code == 2
    assert "none.png cannot be read: No such file or directory." in " ".join(sent.err.split())


async def test_start_takes_the_user_and_metadata(mulligan: Run, temporal: DevServer) -> None:
    """As `user` and `metadata` of the input; metadata without a name and a value is refused."""
    nobody = ("start", "support", "Hi", "--task-queue", "nobody", "--user", "ada")
    named = ("--metadata", "team=shop", "--metadata", "note=a=b")
    assert (await mulligan(*nobody, *named, "--id", "m-1")).code == 0
    client = await Client.connect(temporal.address, namespace=temporal.namespace)
    [begun] = [event async for event in client.get_workflow_handle("m-1").fetch_history_events(page_size=1)][:1]
    run_input = json.loads(begun.workflow_execution_started_event_attributes.input.payloads[0].data)
    assert (run_input["user"], run_input["metadata"]) == ("ada", {"team": "shop", "note": "a=b"})
    refused = await mulligan(*nobody, "--metadata", "team")
    assert refused.code == 2
    assert "--metadata 'team': give NAME=VALUE, for example --metadata team=shop." in " ".join(refused.err.split())


async def test_the_id_of_a_run_that_has_ended_starts_a_new_run_and_says_so(mulligan: Run, worker: Process) -> None:
    """The id of an open run is refused."""
    started = ("start", "support", "Hi", "--id", "same")
    first, second = await mulligan(*started, "--wait"), await mulligan(*started, "--wait")
    assert (first.code, second.code) == (0, 0), second.err
    said = "an earlier run with the id 'same' has ended (completed). This is a new run"
    assert said not in first.err
    assert said in second.err
    nobody = ("start", "support", "Hi", "--id", "taken", "--task-queue", "nobody")
    assert (await mulligan(*nobody)).code == 0
    taken = await mulligan(*nobody)
    assert (taken.code, taken.out) == (2, "")
    assert "a run with the id 'taken' is open; choose another --id" in taken.err


async def test_the_tail_of_a_run_that_has_ended_says_of_no_tool_that_it_is_running(
    mulligan: Run, worker: Process
) -> None:
    assert (await mulligan("start", "support", "Hi", "--id", "over", "--wait")).code == 0
    events, tail = await asyncio.gather(mulligan("tail", "over", "--events"), mulligan("tail", "over"))
    assert '"tool_call_started"' in events.out
    assert "✓ search_orders" in tail.out
    assert "is running" not in tail.out


async def test_show_and_list_present_the_sub_agents_of_a_run(mulligan: Run, worker: Process) -> None:
    """`show` prints a tree, `--deep` also their steps; `list` has them with `--sub-agents`."""
    waited = await mulligan("start", "editor", "How are the herons?", "--id", "herons", "--wait")
    assert (waited.code, waited.out.split("; ")[1]) == (0, "purple: 60000 pairs, falling")
    show, deep, as_json, listed, all_listed, below, wrong = await asyncio.gather(
        mulligan("show", "herons"),
        mulligan("show", "herons", "--deep"),
        mulligan("show", "herons", "--deep", "--json"),
        mulligan("list", "--json"),
        mulligan("list", "--sub-agents", "--json"),
        mulligan("show", "herons/call_1_2", "--json"),
        mulligan("show", "herons", "--deep", "--trace"),
    )
    lines = [line.strip() for line in show.out.splitlines()]
    assert "↳ researcher completed, 2 steps, 75 + 29 tokens  herons/call_1_1" in lines
    assert any(line.startswith("↳ translator completed, 1 step") for line in lines)
    assert "look_up" not in show.out
    assert '✓ look_up {"word": "purple"}' in deep.out
    tree = json.loads(as_json.out)["sub_agents"]
    assert [(each["step"], each["call_id"]) for each in tree] == [(1, "call_1_1"), (1, "call_1_2"), (1, "call_1_3")]
    [translator] = tree[1]["sub_agents"]
    assert (translator["run"]["id"], len(translator["steps"])) == ("herons/call_1_2/call_2_1", 1)
    assert "herons/call_1_1" not in listed.out
    parents = {run["id"]: run.get("parent") for run in json.loads(all_listed.out)}
    assert (parents["herons"], parents["herons/call_1_1"]) == (None, "herons")
    assert [each["run"]["agent"] for each in json.loads(below.out)["sub_agents"]] == ["translator"]
    assert wrong.code == 2


async def test_commands_link_to_the_run_and_its_trace_on_stderr(
    mulligan: Run, worker: Process, environment: dict[str, str]
) -> None:
    """To Temporal's UI and to Jaeger's, by each command that shows one run."""
    uis = {"MULLIGAN_TEMPORAL_UI_URL": "http://ui.example", "MULLIGAN_JAEGER_URL": "http://127.0.0.1:1"}
    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    started = await mulligan("start", "support", "Hi", "--id", "l-1", "--wait", "--json", **uis)
    answer = json.loads(started.out)
    trace_id, namespace = answer["result"]["trace_id"], environment["TEMPORAL_NAMESPACE"]
    shown = await asyncio.gather(*(mulligan(*how, "l-1", **uis) for how in (["show"], ["tail"], ["show", "--trace"])))
    for ran in (started, *shown):
        assert f"http://ui.example/namespaces/{namespace}/workflows/l-1/{answer['run_id']}/history" in ran.err, ran
        assert f"http://127.0.0.1:1/trace/{trace_id}" in ran.err, ran
        assert ran.code == 0
    joins = json.dumps({"traceparent": parent})
    joined = await mulligan("start", "support", "Hi", "--id", "l-2", "--input", joins, **uis)
    assert f"http://127.0.0.1:1/trace/{'ab' * 16}" in joined.err


async def test_options_take_precedence_over_the_input_option(mulligan: Run, worker: Process) -> None:
    """`--input` may come from stdin and may be in camelCase."""
    given = json.dumps({"agent": "nobody", "prompt": "x", "maxSteps": 9, "metadata": {"team": "a"}})
    ran = await mulligan("start", "support", "Go", "--max-steps", "1", "--input", "-", "--wait", "--json", stdin=given)
    answer = json.loads(ran.out)
    assert (ran.code, answer["status"], answer["result"]["steps"]) == (1, "max_steps", 1)
    assert answer["id"].startswith("support-")


async def test_commands_exit_with_1_and_the_typed_error_when_the_run_failed(mulligan: Run, worker: Process) -> None:
    """In `start --wait`, `show` and `tail`."""
    ran = await mulligan("start", "slow", "Go", "--model", "scripted:broken", "--id", "f-1", "--wait", "--json")
    answer = json.loads(ran.out)
    assert (ran.code, answer["status"], answer["error"]["kind"]) == (1, "failed", "UnknownToolError")
    show, tail = await asyncio.gather(mulligan("show", "f-1"), mulligan("tail", "f-1"))
    for seen in (show, tail):
        assert seen.code == 1
        assert "failed: UnknownToolError: There is no tool `sarch_orders`" in " ".join(seen.out.split())


WRONG: list[tuple[list[str], dict[str, str], str]] = [
    (["start"], {}, 'no agent is named: `mulligan start AGENT "prompt"`'),
    (["start", "support"], {}, 'no prompt: what should the agent do? `mulligan start support "prompt"`'),
    (["start", "support", "--input", '{"messages": []}'], {}, "no prompt"),
    (["start", "support", " "], {}, '"prompt" is empty'),
    (["start", "support", "x", "--max-steps", "0"], {}, '"max_steps" is 0'),
    (["start", "support", "x", "--input", "{"], {}, "--input is not JSON"),
    (["start", "support", "x", "--input", "[]"], {}, "--input must be a JSON object"),
    (["start", "support", "x", "--input", '{"promt": 1}'], {}, 'did you mean "prompt"?'),
    (["show", "nobody"], {}, "there is no run 'nobody' on this server; see `mulligan list`"),
    (["tail", "nobody"], {}, "there is no run 'nobody'"),
    (["list", "--status", "a b"], {}, "--status is 'a b'"),
    (["show", "x"], {"TEMPORAL_ADDRESS": NOWHERE}, f"no Temporal server answers at {NOWHERE}"),
    (["list"], {"TEMPORAL_ADDRESS": NOWHERE}, "Start one with `uv run mulligan dev`"),
    (["start", "support", "x"], {"TEMPORAL_ADDRESS": NOWHERE}, f"no Temporal server answers at {NOWHERE}"),
    (["agents", "--load", "nowhere.at_all"], {}, "there is no module 'nowhere.at_all'"),
    (["agents"], {"MULLIGAN_GRACE_SECONDS": "soon"}, "MULLIGAN_GRACE_SECONDS is 'soon'"),
    (["list", "--limit", "1"], {"MULLIGAN_ENCRYPTION_KEYS": "x"}, "MULLIGAN_ENCRYPTION_KEYS: entry 1 is not a key"),
    (["dev", "--port", "70000"], {}, "70000"),
    (["fly"], {}, "No such command 'fly'"),
]


@pytest.mark.parametrize(
    ("words", "env", "says"), WRONG, ids=[" ".join(words) + str(len(env)) for words, env, _ in WRONG]
)
async def test_wrong_use_of_a_command_exits_with_2_and_a_sentence(
    mulligan: Run, words: list[str], env: dict[str, str], says: str
) -> None:
    """Exit code 2, a sentence on stderr, nothing on stdout, never a traceback."""
    ran = await mulligan(*words, **env)
    assert says in " ".join(ran.err.replace("│", " ").split())
    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err


BAD_MODULES = {
    "a tool without types": (
        "from mulligan import tool\n\n@tool\ndef find(name): ...\n",
        "tool 'find': parameter 'name' has no type; annotate it, as in `name: str`.",
    ),
    "two agents of one name": (
        "from mulligan import Agent\na = Agent(name='x', model='openai:y')\nb = Agent(name='x', model='openai:y')\n",
        "two agents are named 'x'",
    ),
    "a function without @tool": (
        "from mulligan import Agent\ndef f(): ...\na = Agent(name='x', model='openai:y', tools=[f])\n",
        "agent 'x': tools[0] (f) is not a tool; declare it with @tool.",
    ),
    "a syntax error": ("def f(:\n", "line 1: invalid syntax"),
    "a missing library": ("import nowhere_to_be_found\n", "imports 'nowhere_to_be_found', which is not installed"),
    "an error of its own": ("1 / 0\n", "line 1): ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize("case", BAD_MODULES, ids=str)
async def test_a_bad_declaration_stops_the_worker(case: str, mulligan: Run, tmp_path: Path) -> None:
    """With exit code 2 and one sentence that names the file, the tool and the fault, before any server is asked."""
    source, says = BAD_MODULES[case]
    (tmp_path / "badly.py").write_text(source)
    ran = await mulligan("worker", "--load", "badly.py", cwd=tmp_path, TEMPORAL_ADDRESS=NOWHERE)
    assert ran.code == 2
    assert says in ran.err
    assert "badly" in ran.err
    assert len(ran.err.strip().splitlines()) == 1


async def test_a_worker_without_a_server_exits_with_the_address_it_tried(environment: dict[str, str]) -> None:
    """With exit code 2; it says how to start a server."""
    ran = await command(sys.executable, "worker.py", env=environment | {"TEMPORAL_ADDRESS": NOWHERE})
    assert ran.code == 2
    assert f"no Temporal server answers at {NOWHERE}" in ran.err
    assert "Traceback" not in ran.err


async def test_the_shipped_agents_are_listed_where_no_module_is_named_or_on_request(mulligan: Run) -> None:
    """As a worker serves them."""
    alone, beside = await asyncio.gather(
        mulligan("agents", "--json"),
        mulligan("agents", "--load", "tests.acceptance.support_agent", "--with-shipped", "--json"),
    )
    assert [agent["name"] for agent in json.loads(alone.out)] == ["assistant", "demo"]
    assert [agent["name"] for agent in json.loads(beside.out)] == ["assistant", "demo", "slow", "support"]


async def test_a_worker_whose_namespace_does_not_exist_exits_with_a_sentence(
    mulligan: Run, environment: dict[str, str]
) -> None:
    """With exit code 2, before it says that it serves."""
    ran = await mulligan("worker", TEMPORAL_NAMESPACE="nope")
    [line] = [line for line in ran.err.splitlines() if "WARN" not in line]
    assert ran.code == 2
    assert f"error: the Temporal server at {environment['TEMPORAL_ADDRESS']} has no namespace 'nope'; set " in line


async def test_a_worker_and_the_agents_command_warn_of_probable_mistakes(
    mulligan: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """On stderr, one line each; the modules of --load may be separated by commas."""
    (tmp_path / "silent.py").write_text("from mulligan import tool\n@tool\ndef mute(x: str) -> str: return x\n")
    (tmp_path / "empty.py").write_text("")
    program = (sys.executable, "-P", "-m", "mulligan")
    listed, started = await asyncio.gather(
        command(*program, "agents", "--load", "silent,empty", env=environment, cwd=tmp_path),
        command(
            *program, "worker", "--load", "silent,empty",
            env=environment | {"TEMPORAL_NAMESPACE": "nope"}, cwd=tmp_path,
        ),
    )  # fmt: skip
    for ran in (listed, started):
        warnings = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
        assert [line.split("/")[-1].split(" ")[0] for line in warnings] == ["empty.py:", "silent.py:"]
    assert "tools for agents of other workers: mute" in listed.out


async def test_the_agents_command_lists_agents_and_tools_with_their_schemas(mulligan: Run) -> None:
    """Those that a worker would serve."""
    ran = await mulligan("agents", "--load", "tests.acceptance.support_agent", "--json")
    agents = {agent["name"]: agent for agent in json.loads(ran.out)}
    assert set(agents) == {"slow", "support"}
    [tool] = agents["support"]["tools"]
    assert tool["parameters"]["required"] == ["customer"]
    shown = await mulligan("agents")
    assert "write_file(path, content, [mode])" in " ".join(shown.out.split())
    clerk = (await mulligan("agents", "--load", "tests.acceptance.clerk_agent", COLUMNS="200")).out
    assert "refund(order, euros, [note])  needs approval  Give money back." in clerk
    assert "ask_person(question)  asks a person  Ask" in clerk


async def test_the_demo_prints_each_mistake_its_recovery_and_the_trace(mulligan: Run) -> None:
    """Five kinds of mistakes."""
    ran = await mulligan("demo")
    assert ran.code == 0
    for kind in ("unknown_tool", "invalid_arguments", "invalid_json", "tool_error"):
        assert f"returned to the model: {kind}" in ran.out
        assert f"ERROR {kind}  recovered" in ran.out
    assert "repaired by fix" in ran.out
    assert "└── invoke_agent demo" in ran.out
    assert "agent.finish  completed" in ran.out
    assert ran.err.splitlines()[-2] == ""
    assert "\\n" not in ran.err
    answer = json.loads((await mulligan("demo", "--json")).out)
    assert (answer["status"], answer["result"]["recovered_failures"], answer["result"]["repairs"]) == (
        "completed",
        4,
        2,
    )


async def test_the_dev_command_serves_until_sigterm_and_keeps_its_runs_in_a_file(
    mulligan: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """On the chosen ports. It exits with 0."""
    process = await start_command(
        *("dev", "--port", "0", "--ui-port", "0", "--json", "--db", str(tmp_path / "runs.db")),
        env=environment, stdout=PIPE, stderr=DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    address = json.loads(await process.stdout.readline())["address"]
    listed = await mulligan("list", TEMPORAL_ADDRESS=address, TEMPORAL_NAMESPACE="default")
    assert listed.code == 0
    assert "no runs yet" in listed.err
    process.terminate()
    await process.stdout.read()
    assert await process.wait() == 0
    assert (tmp_path / "runs.db").exists()


async def test_the_dev_command_ends_when_its_server_does(environment: dict[str, str]) -> None:
    """Else it would say that a server runs, while all commands fail."""
    process = await start_command(
        *("dev", "--port", "0", "--ui-port", "0", "--json"), env=environment, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    port = json.loads(await process.stdout.readline())["address"].partition(":")[2]
    [server] = [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdecimal()
        and f"--port\0{port}\0".encode() in (line := _command_line(folder))
        and not line.startswith(b"/bin/sh")  # that watches it
    ]
    os.kill(server, signal.SIGKILL)
    _, err = await process.communicate()
    assert await process.wait() == 1
    assert "error: Temporal's dev server has ended" in err.decode()


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


async def test_an_agent_that_no_worker_serves_is_refused_with_the_nearest_name(mulligan: Run, worker: Process) -> None:
    """As over HTTP: the run would fail, or wait for a worker that never comes. Where no worker polls, it waits for one."""
    ran = await mulligan("start", "suport", "x", "--id", "misspelt")
    assert ran.code == 2
    said = " ".join(ran.err.split())
    assert "error: There is no agent 'suport'; there are: editor, researcher, slow, support, translator. " in said
    assert "Did you mean 'support'? These are the agents of task queue 'acceptance'." in said
    assert (await mulligan("show", "misspelt")).code == 2
    unserved = await mulligan("start", "suport", "x", "--id", "unserved", "--task-queue", "unserved")
    assert unserved.code == 0, unserved.err


MODULE = """
from mulligan import Agent, Say, Script

agent = Agent(name="greeter", model="scripted:greeting")
script = Script("greeting", [Say("{}")])
"""


async def test_a_worker_with_reload_serves_a_changed_file_and_survives_a_broken_one(
    mulligan: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    """A syntax error is reported, and the next change starts the worker again."""
    module = tmp_path / "greeting.py"
    module.write_text(MODULE.format("Hello."))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mulligan", "worker", "--load", "greeting", "--task-queue", "reload", "--reload"),
        env=environment, cwd=tmp_path, stderr=PIPE,
    )  # fmt: skip
    assert process.stderr is not None

    async def line_with(words: str) -> str:
        assert process.stderr is not None
        while words not in (line := (await process.stderr.readline()).decode()):
            assert line, words
        return line

    async def greeting() -> str:
        return (await mulligan("start", "greeter", "x", "--wait", "--task-queue", "reload")).out

    try:
        await line_with("Serving greeter on task queue 'reload'")
        assert await greeting() == "Hello.\n"
        module.write_text("agent = (")
        assert await line_with("changed: ") == "greeting.py changed: the worker starts again.\n"
        await line_with("The worker has ended with code 2. It starts again when a Python file changes.")
        module.write_text(MODULE.format("Good day."))
        await line_with("Serving greeter on task queue 'reload'")
        assert await greeting() == "Good day.\n"
        process.terminate()
        await line_with("Draining")
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


async def test_reload_and_processes_exclude_each_other(mulligan: Run) -> None:
    ran = await mulligan("worker", "--reload", "--processes", "2")
    assert ran.code == 2
    assert "error: --reload and --processes do not go together" in ran.err


async def test_the_version_is_that_of_the_installed_package(mulligan: Run) -> None:
    ran = await mulligan("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"mulligan {version('mulligan')}\n", "")
    assert mulligan_package.__version__ == version("mulligan")
    assert "__version__" not in mulligan_package.__all__


def test_a_copy_of_the_code_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", find_none)
    assert not hasattr(mulligan_package, "__version__")
