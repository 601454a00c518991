"""`CleanUpWorkflow`: ends what a cancelled run has started elsewhere, such as a response at a provider."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from mulligan.wire.clean_up_request import CLEAN_UP, CleanUp
from mulligan.wire.read_payload import read_payloads
from mulligan.workflows import limits
from mulligan.workflows.agent_route import AgentRoute
from mulligan.workflows.features import installed
from mulligan.workflows.scheduling import NoResult, run_activity


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow")


@workflow.defn(name=CLEAN_UP, sandboxed=False)
class CleanUpWorkflow:
    """Runs one activity, which is tried for as long as its row in the table allows."""

    @workflow.run
    async def run(self, start: RawValue) -> None:
        """Run the activity. If it fails, the log says so: nobody waits for this workflow."""
        [clean_up] = read_payloads(workflow.payload_converter(), [start.payload], [CleanUp])
        row = installed().schedules[clean_up.activity]
        if clean_up.queue is not None:
            row = replace(row, queue=clean_up.queue, is_routed=False)
        request, route = _Request.model_validate(clean_up.request), AgentRoute(lambda: False)
        # If it ended while the run that has started it is about to end, the server would refuse the run's last workflow task
        # for the news, and the local activities in it, which write spans, would run again.
        await workflow.sleep(limits.CLEAN_UP_DELAY)
        try:
            await run_activity(clean_up.activity, request, NoResult, row, route=route, summary=clean_up.summary)
        except ActivityError as error:
            workflow.logger.warning("%s failed: %s", clean_up.summary, error.cause)
