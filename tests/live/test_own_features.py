"""A feature of a user's own in a user's workflow, which runs in Temporal's sandbox."""

from __future__ import annotations

import uuid
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Replayer, Worker

from mulligan import DurableAgent, MulliganPlugin
from mulligan.devserver import DevServer
from tests.support.one_word_feature import ShoutedError
from tests.support.temporal import environment_of


@workflow.defn
class Asks:
    @workflow.run
    async def run(self) -> dict[str, Any]:
        refused = await DurableAgent("strict").run("Hi")
        accepted = await DurableAgent("lax").run("Hi")
        try:
            await DurableAgent("loud").run("Hi")
        except ShoutedError as error:  # the feature's own class: the sandbox has not imported its module again
            return {"refused": refused.status, "accepted": accepted.output, "caught": error.message}
        return {}


async def test_a_feature_of_ones_own_acts_in_a_workflow_in_the_sandbox(temporal: DevServer) -> None:
    """What it raises, and its waits, are understood by the workflow code that the sandbox has imported again."""
    plugin = MulliganPlugin(load=["tests.support.one_word_feature"])
    client = await Client.connect(
        environment_of(temporal)["TEMPORAL_ADDRESS"], namespace=temporal.namespace, plugins=[plugin]
    )
    queue = f"own-{uuid.uuid4().hex[:8]}"
    async with Worker(client, task_queue=queue, workflows=[Asks]):
        handle = await client.start_workflow(Asks.run, id=queue, task_queue=queue)
        assert await handle.result() == {"refused": "refused", "accepted": "Two words.", "caught": "No shouting."}
    history = await handle.fetch_history()
    await Replayer(workflows=[Asks], plugins=[plugin]).replay_workflow(history)
