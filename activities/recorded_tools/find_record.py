"""`find_record`: gives a call of a fork the result that the equal call of the earlier run had, and writes its span."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from temporalio import activity
from temporalio.service import RPCError, RPCStatusCode

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.heartbeat import heartbeating
from mulligan.activities.recorded_tools.call_records import CallRecords
from mulligan.activities.services import Services
from mulligan.errors import InvalidRunInputError
from mulligan.values import ErrorInfo
from mulligan.wire.recorded_outcome import RecordedOutcome
from mulligan.wire.recorded_tools import FIND_RECORD, FindRecord, FoundRecord


@dataclass(frozen=True)
class FindRecordActivity:
    """The activity `find_record`."""

    services: Services
    records: CallRecords = field(default_factory=CallRecords)

    @activity.defn(name=FIND_RECORD)
    async def find_record(self, request: FindRecord) -> FoundRecord:
        """The record of a call. The model reads its error whatever the agent's policy is, as it has read it before.

        Raises:
            ApplicationError: this worker does not serve the agent.
            InvalidRunInputError: the earlier run is no longer on the server.
            RPCError: no worker answers for the earlier run now.
        """
        await served_agent(self.services, request.where)
        started = time.time()
        async with heartbeating():
            record = await self._record(request)
        if record is not None:
            found = FoundRecord(found=True, attempts=0, **dict(record))
        elif request.unrecorded == "live":
            return FoundRecord(attempts=0)
        else:
            message = (
                f"`{request.call.name}` was not run: this run has the recorded results of an earlier one, which made no "
                "such call."
            )
            found = FoundRecord(text=message, error=ErrorInfo(kind="tool_error", message=message), attempts=0)
        self._end_span(request, found, started)
        self.services.cache_result(request.where, request.call, found.text, found.error, found.content)
        return found

    async def _record(self, request: FindRecord) -> RecordedOutcome | None:
        """The record of the call: that of the request, or of the earlier run.

        Raises:
            InvalidRunInputError: the earlier run is no longer on the server.
            RPCError: no worker answers for the earlier run now.
        """
        if (source := request.source) is None:
            return request.record
        try:
            return await self.records.find(activity.client(), source, request.digest, request.number)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            raise InvalidRunInputError(
                f"The recorded results of this run are those of {source.workflow_id!r} (run id {source.run_id}), which is "
                "no longer on this server: it was deleted, or its retention is over."
            ) from None

    def _end_span(self, request: FindRecord, found: FoundRecord, started: float) -> None:
        error = found.error
        fields = {"decision": found.decision, "untrusted": found.untrusted, "recorded": found.found}
        span = self.services.telemetry.call_span(request, arguments=request.arguments, start=started, **fields)
        if error is None:
            span.succeed(found.text)
        elif not found.found and request.unrecorded == "diverge":  # no model reads it
            span.fail_attempt(error.kind, error.message, "Unrecorded")
        else:
            span.fail(error.kind, text=found.text, safe_text=error.message, exception="Recorded", recovered=True)
