"""Commands whose connection to Temporal breaks off."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from temporalio.client import Client

from mulligan.client import connect as connecting
from tests.live.conftest import DONE, Lab
from tests.support.lost_answers import Faults, with_faults


@pytest.mark.parametrize("name", ["start", "resume", "fork"])
async def test_a_start_without_an_answer_may_have_started_the_run(
    lab: Lab, command: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The command says so, and with which command to see: here it was started."""
    monkeypatch.setenv("MULLIGAN_TASK_QUEUE", lab.task_queue)
    connect = connecting.connect
    faults = Faults(lose_starts=1)

    async def broken() -> Client:
        return with_faults(await connect(), faults)

    ran = await lab.run(lambda body, nth: DONE)
    monkeypatch.setattr(connecting, "connect", broken)
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
