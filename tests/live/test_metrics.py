"""Metrics over OTLP: those of runs, without names that a model made up, and those of the Temporal SDK."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from mulligan.devserver import DevServer
from tests.support.command_server import PIPE, start_command
from tests.support.lab import Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.temporal import environment_of

MADE_UP = "a_tool_that_the_model_made_up"


def points(lab: Lab, name: str, **having: Any) -> list[tuple[dict[str, Any], int]]:
    """The newest points of a histogram that have these attributes (dots as `__`), with their counts."""
    wanted = {key.replace("__", "."): value for key, value in having.items()}
    newest = lab.otlp.metrics(name)[-1]
    return [
        (point.attributes, point.count or 0)
        for point in newest.points
        if all(point.attributes.get(key) == value for key, value in wanted.items())
    ]


async def test_a_run_records_calls_tokens_attempts_and_steps_in_its_metrics(lab: Lab) -> None:
    """Calls have the attributes tool and error, tokens their kind, attempts their error, steps their status."""
    turns = [
        Turn(calls=[("click", "{}", None), ("click", '{"selector": "#a"}', None), (MADE_UP, "{}", None)]),
        Turn(calls=[(MADE_UP, "{}", "x"), (MADE_UP, "{}", "x")]),
        call("explode"),
        Turn(text="done", fail_first=[Failure(503)]),
    ]
    ran = await lab.run(turns, agent="counted")
    tools = {
        (about["gen_ai.tool.name"], about.get("error.type"), about["mulligan.recovered"]): count
        for about, count in points(lab, "mulligan.tool_call.duration", gen_ai__agent__name="counted")
    }
    assert tools == {
        ("click", "invalid_arguments", True): 1,
        ("click", None, False): 1,
        ("(unknown)", "unknown_tool", True): 2,
        ("(unknown)", "duplicate_call", True): 1,
        ("explode", "tool_exception", True): 1,
    }
    chats = points(lab, "gen_ai.client.operation.duration", gen_ai__request__model=ran.id)
    assert sorted((about.get("error.type", ""), count) for about, count in chats) == [("", 4), ("Unavailable", 1)]
    tokens = points(lab, "gen_ai.client.token.usage", gen_ai__request__model=ran.id)
    assert sorted((about["gen_ai.token.type"], count) for about, count in tokens) == [("input", 4), ("output", 4)]
    [(about, count)] = points(lab, "mulligan.run.steps", gen_ai__agent__name="counted")
    assert (about["mulligan.status"], count) == ("completed", 1)
    everything = [point.attributes for metric in lab.otlp.metrics() for point in metric.points]
    assert MADE_UP not in str(everything)


def task_queues_of_the_sdk(otlp: OtlpReceiver) -> set[Any]:
    """The task queues that metrics of Temporal's SDK name."""
    of_sdk = [metric for metric in otlp.metrics() if metric.name.startswith("temporal_")]
    return {point.attributes.get("task_queue") for metric in of_sdk for point in metric.points}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_a_worker_exports_the_metrics_of_the_temporal_sdk(temporal: DevServer, protocol: str) -> None:
    """To the same endpoint as Mulligan's own."""
    with OtlpReceiver() as otlp:
        process = await start_command(
            "worker", "--task-queue", "metrics",
            env={**os.environ, **otlp.environment(protocol), **environment_of(temporal), "OTEL_METRIC_EXPORT_INTERVAL": "200"},
        )  # fmt: skip
        try:
            # The first metrics are exported before the worker polls, and have no task queue.
            while "metrics" not in task_queues_of_the_sdk(otlp):
                await asyncio.sleep(0.1)
        finally:
            process.terminate()
            await process.wait()
    assert process.returncode == 0


async def test_an_endpoint_that_takes_no_metrics_is_reported_once(lab: Lab, temporal: DevServer) -> None:
    """Such as Jaeger's. Later exports that fail are not logged again."""
    with OtlpReceiver(takes_metrics=False) as otlp:
        process = await start_command(
            "worker", "--task-queue", "metrics",
            env={**os.environ, **otlp.environment(), **environment_of(temporal), "OTEL_METRIC_EXPORT_INTERVAL": "100"},
            stderr=PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        await process.stderr.readline()
        given = {"agent": "demo", "prompt": "Hello?", "model": "scripted:echo"}
        await lab.client.execute_workflow("AgentWorkflow", given, id="traces-alone", task_queue="metrics")
        while otlp.refused_metrics < 20:
            await asyncio.sleep(0.1)
        process.terminate()
        rest = (await process.stderr.read()).decode()
        await process.wait()
    assert rest.count("does not accept metrics") == 1
    assert len(rest.splitlines()) <= 3  # this line, and those that it logs while it drains
