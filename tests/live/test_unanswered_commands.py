"""Doors whose connection to Temporal breaks off: what they say, and what they still show."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
from temporalio.client import Client, Interceptor, ListWorkflowsInput, OutboundInterceptor

import mulligan.cli.show as showing
from mulligan.client import connect as connecting
from mulligan.client import find_runs
from mulligan.serve.console import run_page
from mulligan.wire.experiments import EXPERIMENT_WORKFLOW
from tests.support.app_command import app_command  # noqa: F401 - a fixture
from tests.support.http_server import http_server
from tests.support.lab import DONE, Lab
from tests.support.lost_answers import Faults, unavailable, with_faults


class NoList(Interceptor):
    """Lists of workflows fail, or never come."""

    def __init__(self, *, is_slow: bool) -> None:
        self.is_slow = is_slow

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - Temporal's name
        return _NoList(next, self.is_slow)


class _NoList(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, is_slow: bool) -> None:  # noqa: A002 - Temporal's name
        super().__init__(next)
        self._is_slow = is_slow

    def list_workflows(self, input: ListWorkflowsInput) -> Any:  # noqa: A002 - Temporal's name
        pages = super().list_workflows(input)
        is_slow = self._is_slow

        async def fetch_next_page(**_: Any) -> None:
            if is_slow:
                await asyncio.Event().wait()
            raise unavailable()

        pages.fetch_next_page = fetch_next_page  # type: ignore[method-assign]
        return pages


def connect_with(monkeypatch: pytest.MonkeyPatch, faults: Interceptor) -> None:
    """Let the commands use a client with faults."""
    connect = connecting.connect

    async def broken() -> Client:
        return with_faults(await connect(), faults)

    monkeypatch.setattr(connecting, "connect", broken)


@pytest.mark.parametrize("name", ["start", "resume", "fork"])
async def test_a_start_without_an_answer_may_have_started_the_run(
    lab: Lab, command: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The command says so, and with which command to see: here it was started."""
    monkeypatch.setenv("MULLIGAN_TASK_QUEUE", lab.task_queue)
    faults = Faults(lose_starts=1)
    ran = await lab.run(lambda body, nth: DONE)
    connect_with(monkeypatch, faults)
    new_id = f"lost-{uuid.uuid4().hex[:6]}"
    words = {
        "start": ("start", "shop", "Go on.", "--model", f"openai-chat:{ran.id}"),
        "resume": ("resume", ran.id, "Go on."),
        "fork": ("fork", ran.id),
    }
    code, _, error = await command(*words[name], "--id", new_id)
    said = " ".join(error.split())
    assert (code, faults.starts) == (2, [new_id])
    assert f"error: the run '{new_id}' may have been started: Temporal did not answer (transport error)." in said
    assert said.endswith(f"`mulligan show {new_id}`.")
    assert (await lab.client.get_workflow_handle(new_id).describe()).id == new_id


async def test_an_experiment_whose_start_has_no_answer_may_have_been_started(
    lab: Lab, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says so, and the same command with its name follows the experiment that was started."""
    monkeypatch.setenv("MULLIGAN_TASK_QUEUE", lab.task_queue)
    ran = await lab.run(lambda body, nth: DONE)
    name = f"lost-{uuid.uuid4().hex[:6]}"
    words = ("whatif", ran.id, "--name", name, "--json")
    connect = connecting.connect
    connect_with(monkeypatch, Faults(lose_starts=1, workflow=EXPERIMENT_WORKFLOW))
    code, _, error = await command(*words)
    said = " ".join(error.split())
    assert code == 2
    assert f"error: the experiment '{name}' may have been started: Temporal did not answer (transport error)." in said
    assert f"with `--name {name}` the same command follows it." in said
    monkeypatch.setattr(connecting, "connect", connect)
    code, out, _ = await command(*words)
    assert (code, len(json.loads(out)["rows"])) == (0, 1)


@pytest.mark.parametrize("is_slow", [False, True])
async def test_show_and_the_console_show_a_run_whose_forks_are_not_listed(
    lab: Lab, command: Any, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """Both say that the forks are missing, and the console does not say that no worker answers."""
    monkeypatch.setattr(showing, "SECONDS_FOR_FORKS", 0.2)
    monkeypatch.setattr(run_page, "SECONDS_FOR_FORKS", 0.2)
    ran = await lab.run([DONE])
    connect_with(monkeypatch, NoList(is_slow=is_slow))
    code, out, error = await command("show", ran.id, "--json")
    assert (code, json.loads(out)["status"], len(json.loads(out)["steps"])) == (0, "completed", 1)
    reason = "Temporal does not answer in time" if is_slow else "transport error"
    assert f"the forks of this run cannot be listed now: {reason}" in " ".join(error.split())
    async with http_server(with_faults(lab.client, NoList(is_slow=is_slow))) as door:
        page = (await door.http.get(f"/console/runs/{ran.id}")).text
    assert "The forks of this run could not be listed now." in page
    assert "No worker of the run answers now" not in page


async def test_show_and_the_console_say_where_not_all_runs_were_looked_through_for_forks(
    lab: Lab, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(*_: Any, **__: Any) -> find_runs.RunPage:
        return find_runs.RunPage([], next="more")

    ran = await lab.run([DONE])
    monkeypatch.setattr(find_runs, "find_runs", cut)
    code, _, error = await command("show", ran.id)
    said = f"not all runs were looked through for forks: mulligan list --forked-from {ran.id}"
    assert (code, said in " ".join(error.split())) == (0, True)
    monkeypatch.setattr("mulligan.serve.runs.find_runs", cut)
    async with http_server(lab.client) as door:
        assert "Not all runs were looked through for forks" in (await door.http.get(f"/console/runs/{ran.id}")).text
