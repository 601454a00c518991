"""The two ends of a model call in a batch: its request is prepared and stored; its answer is read and inspected."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from temporalio import activity
from temporalio.common import WorkflowIDConflictPolicy

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.batch.batch_providers import batch_provider, contents_for
from mulligan.activities.heartbeat import attempt_was_abandoned, heartbeating
from mulligan.activities.model_attempt import ModelAttempt
from mulligan.activities.models._json_fields import to_json
from mulligan.activities.models.call_provider import record_reply
from mulligan.activities.models.protocol import AnswersInBatches, Reply, Request, Unavailable
from mulligan.activities.run_data.find_conversation import conversation_of
from mulligan.activities.services import Services
from mulligan.client.settings import settings
from mulligan.client.worker_versions import unpinned
from mulligan.errors import ModelRequestError
from mulligan.schema.error_text import error_text, type_name
from mulligan.values import ErrorInfo
from mulligan.wire.batch import (
    BATCH_COLLECTOR,
    COLLECTOR_PREFIX,
    PREPARE_BATCH_CALL,
    READ_BATCH_ANSWER,
    AddCall,
    BatchedCall,
    BatchOutcome,
    CollectorState,
    GatherLimits,
    PrepareBatchCall,
    PreparedBatchCall,
    ReadBatchAnswer,
)


@dataclass(frozen=True)
class BatchCallActivities:
    """The activities `prepare_batch_call` and `read_batch_answer`."""

    services: Services

    @property
    def all(self) -> list[Callable[..., Any]]:
        """The activities that a worker registers."""
        return [self.prepare_batch_call, self.read_batch_answer]

    @activity.defn(name=PREPARE_BATCH_CALL)
    async def prepare_batch_call(self, request: PrepareBatchCall) -> PreparedBatchCall:
        """Store the request as a live call would send it, and start the collector of its model if there is none.

        It can be repeated: the workflow sends the request to the collector, by a signal that Temporal delivers once.

        Raises:
            ModelRequestError: the request cannot be sent.
            ApplicationError: Temporal retries; or this worker does not serve the agent.
        """
        services, where, info = self.services, request.where, activity.info()
        agent = await served_agent(services, where)
        await services.budgets.check(where)
        attempt = ModelAttempt(services, request, request.number - 1)
        await attempt.open_spans()
        async with heartbeating() as heartbeat:
            definition = await services.definitions.find(request.definition, where)
            part, provider = batch_provider(services, request.model), services.providers.of(request.model)
            async with conversation_of(request, provider, services, heartbeat) as conversation:
                provider_request = attempt.provider_request(agent, definition, conversation)
            body = part.batch_body(provider_request, plain=request.plain)
            key = self._key(request, body)
            head = to_json({"custom_id": key, "method": "POST", "url": part.batch_path})[:-1]
            line = f'{head},"body":'.encode() + body + b"}\n"
            most = settings().batch_bytes
            if len(line) > most:
                raise ModelRequestError(
                    f"The request has {len(line):,} bytes; MULLIGAN_BATCH_BYTES allows {most:,} in a batch."
                )
            ref = await contents_for(services, where.tenant).put(line)
            collector = await self._start_collector(request.model)
        call = BatchedCall(key=key, ref=ref, size=len(line), workflow_id=info.workflow_id or "", tenant=where.tenant)
        return PreparedBatchCall(added=AddCall(call=call, limits=_limits()), collector=collector)

    async def _start_collector(self, model: str) -> str:
        info = activity.info()
        queue = self.services.served.task_queue if self.services.served else info.task_queue
        collector = f"{COLLECTOR_PREFIX}{queue}-{model}"
        await activity.client().start_workflow(
            BATCH_COLLECTOR,
            CollectorState(model=model),
            id=collector,
            task_queue=queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            versioning_override=unpinned(),
            static_summary=f"gathers requests to {model} for batches",
        )
        return collector

    def _key(self, request: PrepareBatchCall, body: bytes) -> str:
        """The request's custom_id: the same for each attempt of this activity, another for each other request."""
        info, where = activity.info(), request.where
        place = (request.step, request.fallback, request.number)
        parts = (info.namespace, info.workflow_id, where.trace, where.conversation, *place)
        return hashlib.sha256("\x1f".join(map(str, parts)).encode() + body).hexdigest()[:32]

    @activity.defn(name=READ_BATCH_ANSWER)
    async def read_batch_answer(self, request: ReadBatchAnswer) -> BatchOutcome:
        """Read the answer, inspect it like that of a live call, and write the span of its attempt.

        Raises:
            ModelRequestError: the request was refused, and would be refused again.
            ApplicationError: Temporal retries; or this worker does not serve the agent.
        """
        services, where = self.services, request.where
        agent = await served_agent(services, where)
        attempt = ModelAttempt(services, request, request.number - 1)
        async with heartbeating() as heartbeat:
            ref = request.answer.ref
            line = await contents_for(services, where.tenant).get(ref) if ref else None
            definition = await services.definitions.find(request.definition, where)
            part, provider = batch_provider(services, request.model), services.providers.of(request.model)
            async with conversation_of(request, provider, services, heartbeat) as conversation:
                provider_request = attempt.provider_request(agent, definition, conversation)
                try:
                    reply = self._reply(request, attempt, part, provider_request, line)
                except (ModelRequestError, Unavailable) as error:
                    if not request.plain and part.may_take_plain(provider_request, error):
                        return BatchOutcome(plain=True)
                    if isinstance(error, ModelRequestError):
                        raise
                    return _failed(error)
                except Exception as error:  # noqa: BLE001 - an endpoint's faulty answers have many forms
                    return _failed(error)
                key = (request.step, request.fallback, request.number)
                reply = replace(reply, usage=reply.usage.model_copy(update={"tier": "batch"}))
                answer = await attempt.take_answer(agent, definition, reply, conversation, key=key)
                return BatchOutcome(answer=answer)

    def _reply(
        self,
        request: ReadBatchAnswer,
        attempt: ModelAttempt,
        part: AnswersInBatches,
        sent: Request,
        line: bytes | None,
    ) -> Reply:
        """The model's reply; its span has the reply, or the failure."""
        services, batches = self.services, part.batches
        provider = services.providers.of(request.model)
        endpoint, chat = services.providers.endpoint_of(request.model), attempt.chat(1)
        with services.telemetry.chat(request.where, chat, is_void=attempt_was_abandoned, start=request.started) as span:
            if endpoint is not None and (server := endpoint.server()) is not None:
                services.telemetry.add_server(span, *server)
            if line is None:
                answer = request.answer
                message = answer.error.message if answer.error else "the batch has no answer to the request"
                raise batches.error_of(answer.status, message) if answer.status else Unavailable(message)
            reply = record_reply(provider, sent, part.reply_of(batches.response_in(line)), services.telemetry, span)
            attempt.add_content(span, sent, reply)
            return reply


def _limits() -> GatherLimits:
    chosen = settings()
    return GatherLimits(
        count=chosen.batch_requests,
        bytes=chosen.batch_bytes,
        seconds=chosen.batch_seconds,
        poll=chosen.batch_poll_seconds,
    )


def _failed(error: Exception) -> BatchOutcome:
    message = str(error) if isinstance(error, Unavailable) else f"{type_name(error)}: {error_text(error)}"
    return BatchOutcome(error=ErrorInfo(kind=type(error).__name__, message=message))
