"""The worker: connect, load the agents, serve until told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any

import typer
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.exceptions import FailureError
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.call_model import CallModelActivity
from activities.call_tool import CallToolActivity
from activities.compact_conversation import CompactConversationActivity
from activities.definitions import Definitions
from activities.find_tool import ToolFinder
from activities.mcp.log import NoTraces
from activities.mcp.servers import McpServers
from activities.open_run import OpenRunActivity
from activities.patience import Patience
from activities.prefix_cache import PrefixCache
from activities.providers.known import providers
from activities.record_decision import RecordDecisionActivities
from activities.record_run import RecordRunActivities
from activities.record_sub_run import RecordSubRunActivity
from activities.resources import Resources
from activities.take_answer import AnswerTaker
from activities.tool_runtime import ToolRuntime
from mulligan.client import connect, leave, no_server
from mulligan.compaction import COMPACT_CONVERSATION
from mulligan.errors import DeclarationError
from mulligan.external_storage import CARRY_BYTES
from mulligan.handoff import CALL_MODEL
from mulligan.health import health_server
from mulligan.loading import Loaded, load
from mulligan.metrics import temporal_runtime
from mulligan.poll_monitor import ActivitySlots, PollMonitor, activity_monitor
from mulligan.prices import Prices
from mulligan.recorded_state import RecordedStateRunner
from mulligan.settings import settings
from mulligan.telemetry import Telemetry
from mulligan.worker_group import WorkerGroup, WorkerStoppedError
from mulligan.worker_options import agent_worker_options, model_worker_options
from mulligan.workflow_cache import WorkflowCache
from workflows.agent_workflow import AgentWorkflow

PASSED_THROUGH = (
    "mulligan",  # values and errors keep one identity in and out of workflows; nothing in it has side effects
    "pydantic",  # pure, and its models are slow to build again for each workflow
    "pydantic_core",
    "jsonschema",  # an agent's output as a dict is read with it; pure
    "referencing",
    "tools",  # imported by modules that hold agents and workflows together
    "openai",  # users' modules may import it; imported again in the sandbox it stops the worker
    "opentelemetry",  # mulligan.telemetry's own; keeps process-wide state
    "zstandard",  # a C extension; pure
)

SECONDS_AFTER_GRACE = 10
"""How much longer than the grace time a worker that has failed may take to end."""


def sandbox(loaded: Loaded) -> SandboxedWorkflowRunner:
    """Temporal's sandbox for workflow code, with what may pass."""
    # Agents of a loaded module are declared once: imported again in the sandbox, they would register twice.
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH, *loaded.modules)
    return SandboxedWorkflowRunner(restrictions=restrictions)


@asynccontextmanager
async def wired(
    loaded: Loaded, telemetry: Telemetry, model_task_queue: str | None = None
) -> AsyncIterator[list[Callable[..., Any]]]:
    """The activities for what was loaded, while the block runs: the one place where the rooms are wired together."""
    registry = loaded.registry
    runtime = ToolRuntime()
    definitions = Definitions(registry)
    cache = PrefixCache(settings().prefix_cache_bytes, telemetry.metrics.prefix_cache_size)
    known = providers(registry.scripts)
    resources = Resources(loaded)
    servers = McpServers()
    tools = ToolFinder(registry, servers)
    patience = Patience(telemetry.metrics)
    taker = AnswerTaker(known, telemetry, runtime, resources, tools, patience)
    recording = RecordRunActivities(registry, telemetry, runtime, tools)
    prices = Prices.known(settings().prices)
    decisions = RecordDecisionActivities(registry, cache, telemetry, runtime, resources, tools, definitions)
    carry_bytes = CARRY_BYTES if settings().external_storage else None
    try:
        async with resources.opened(runtime), servers.opened():
            yield [
                OpenRunActivity(
                    registry, definitions, telemetry, runtime, servers, prices, carry_bytes, model_task_queue
                ).open_run,
                CallModelActivity(
                    registry, known, definitions, cache, telemetry, taker, patience, settings().live_text_seconds
                ).call_model,
                CompactConversationActivity(registry, known, cache, telemetry, patience).compact_conversation,
                CallToolActivity(registry, cache, telemetry, runtime, resources, tools).call_tool,
                recording.record_lost_call,
                recording.finish_run,
                RecordSubRunActivity(registry, cache, telemetry, runtime).record_sub_run,
                decisions.record_decision,
                decisions.check_edit,
            ]
    finally:
        runtime.close()
        for provider in known.values():
            await provider.close()


@asynccontextmanager
async def running_worker(
    client: Client, loaded: Loaded, telemetry: Telemetry, task_queue: str
) -> AsyncIterator[WorkerGroup]:
    """A worker for what was loaded, while the block runs.

    Raises:
        WorkerStoppedError: it stopped by itself. The block was cancelled, unless the task that entered it has ended.
    """
    chosen = settings()
    model_task_queue = f"{task_queue}-models" if chosen.limits_model_calls else None
    cache = WorkflowCache(chosen.max_cached_workflows)
    group = WorkerGroup(say, seconds_to_stop=chosen.grace_seconds + SECONDS_AFTER_GRACE)
    async with wired(loaded, telemetry, model_task_queue) as activities:
        slots = ActivitySlots(chosen.max_concurrent_activities)
        worker = Worker(
            client,
            task_queue=task_queue,
            workflows=[AgentWorkflow, *loaded.workflows],
            activities=activities,
            workflow_runner=RecordedStateRunner(sandbox(loaded), cache),
            unsandboxed_workflow_runner=RecordedStateRunner(UnsandboxedWorkflowRunner(), cache),
            interceptors=[slots],
            on_fatal_error=group.on_fatal_error(task_queue),
            **agent_worker_options(chosen, cache),
        )
        cache.attach(worker)
        workers, monitors = [worker], [PollMonitor(client, task_queue, "workflow", say)]
        monitors += [activity_monitor(client, task_queue, say, slots, chosen.max_activities_per_second)]
        if model_task_queue:
            # One for the same process: it has the same cache and connections, with slots and a rate of its own.
            slots = ActivitySlots(chosen.max_concurrent_model_calls or chosen.max_concurrent_activities)
            worker = Worker(
                client,
                task_queue=model_task_queue,
                activities=[each for each in activities if each.__name__ in (CALL_MODEL, COMPACT_CONVERSATION)],
                interceptors=[slots],
                on_fatal_error=group.on_fatal_error(model_task_queue),
                **model_worker_options(chosen),
            )
            workers += [worker]
            monitors += [activity_monitor(client, model_task_queue, say, slots, chosen.max_model_calls_per_second)]
        async with group.running(workers, monitors):
            yield group


async def serve(load_these: Sequence[str], task_queue: str) -> None:
    """Serve until SIGTERM or Ctrl-C, then let running calls finish within the grace time.

    Raises:
        DeclarationError: something that is loaded, or a setting, cannot work.
        RuntimeError: no Temporal server answers.
        WorkerStoppedError: Temporal's worker stopped by itself. It has been reported.
    """
    loaded = load(load_these)
    telemetry = Telemetry()
    stop = asyncio.Event()
    client: Client | None = None
    group: WorkerGroup | None = None

    async def unready() -> str:
        if client is None or group is None or stop.is_set():
            return "draining" if stop.is_set() else "starting"
        return group.unready or await _cut_off(client)

    try:
        async with AsyncExitStack() as stack:
            if address := settings().health_address:
                say(f"Health at http://{await stack.enter_async_context(health_server(address, unready))}/readyz")
            # Before it connects: as process 1 of a container it would not be stopped by a signal that nobody handles.
            for sign in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(sign, stop.set)
            client = await connect(runtime=temporal_runtime())
            async with running_worker(client, loaded, telemetry, task_queue) as group:
                agents = ", ".join(sorted(loaded.registry.agents))
                at = client.service_client.config.target_host
                say(f"Serving {agents} on task queue {task_queue!r} at {at}. Ctrl-C drains and ends.")
                if build := settings().build_id:
                    say(f"Build {build} of {settings().deployment_name}: runs come once it is the current version.")
                await stop.wait()
                say("Draining: calls that run may finish; no new ones are taken.")
    finally:
        # What the last spans say of this worker must not be lost with it.
        await asyncio.to_thread(telemetry.shutdown)


async def _cut_off(client: Client) -> str:
    """Why the server cannot be reached, or nothing."""
    try:
        await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=timedelta(seconds=2), retry=False)
    except RPCError as error:
        return f"Temporal does not answer: {error.status.name}"
    return ""


class _OneLine(logging.Filter):
    """A failure that we raised on purpose (an endpoint that is down, an unknown agent) is a line, not a stack trace."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the trace off; keep what was said."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FailureError):
            of = getattr(record, "temporal_activity", None) or getattr(record, "temporal_workflow", None) or {}
            record.msg = f"{of.get('activity_type') or of.get('workflow_type')} of {of.get('workflow_id')}: {error}"
            record.args, record.exc_info = (), None
        return True


def _not_worker_failed(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Worker failed")


def set_up_logging() -> None:
    """Warnings to stderr."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(NoTraces())
    for name in ("temporalio.activity", "temporalio.workflow"):
        logging.getLogger(name).addFilter(_OneLine())
    # "Worker failed, shutting down", with a trace: `WorkerGroup` says it in a line, with the reason.
    logging.getLogger("temporalio.worker._worker").addFilter(_not_worker_failed)


def say(line: str) -> None:
    """Progress goes to stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)


def main(
    load_these: Annotated[
        list[str] | None,
        typer.Option("--load", metavar="MODULE", help="A module with agents of your own; may be given again."),
    ] = None,
    task_queue: Annotated[str | None, typer.Option(help="Where runs are served.", show_default="agents")] = None,
) -> None:
    """Serve agents: the shipped ones, and every Agent of the modules named.

    Example: uv run worker.py --load shop.agents
    """
    set_up_logging()
    try:
        chosen = settings()
        asyncio.run(serve([*chosen.load, *(load_these or [])], task_queue or chosen.task_queue))
    except DeclarationError as error:
        say(f"error: {error}")
        raise typer.Exit(2) from None
    except WorkerStoppedError:
        # The group has said why.
        raise typer.Exit(1) from None
    except RuntimeError as error:
        if "connect" not in str(error).lower():
            raise
        say(f"error: {no_server(error)}")
        raise typer.Exit(2) from None


if __name__ == "__main__":
    leave(lambda: typer.run(main))
