"""Create the parts of a worker and connect them. Every way to start a worker uses this."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, cast

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import (
    Interceptor,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerConfig,
    WorkflowInterceptorClassInput,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from mulligan.activities.agent_files.agent_versions import AgentVersions
from mulligan.activities.call_model import CallModelActivity
from mulligan.activities.call_tool import CallToolActivity
from mulligan.activities.check_answer import CheckAnswerActivity
from mulligan.activities.check_edit import CheckEditActivity
from mulligan.activities.list_agents import ListAgentsActivity
from mulligan.activities.mcp.servers import McpServers
from mulligan.activities.models.available_providers import AvailableProviders
from mulligan.activities.models.retry_budget import RetryBudget
from mulligan.activities.open_run import OpenRunActivity
from mulligan.activities.record_decision import RecordDecisionActivity
from mulligan.activities.record_run import RecordRunActivities
from mulligan.activities.run_agents import RunAgents
from mulligan.activities.run_data.conversation_cache import ConversationCache
from mulligan.activities.run_data.definitions import Definitions
from mulligan.activities.services import Services
from mulligan.activities.spending import Spending
from mulligan.activities.tool_running.find_tool import ToolFinder
from mulligan.activities.tool_running.isolated import ChildProcesses
from mulligan.activities.tool_running.isolated_environment import secret_names
from mulligan.activities.tool_running.resources import Resources
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.client.callback_tokens import CallbackTokens, callback_tokens
from mulligan.client.connect import configured_address
from mulligan.client.content_store import configured_content_store
from mulligan.client.external_storage import CARRY_BYTES
from mulligan.client.live_pace import FASTEST, SLOWEST, LivePace
from mulligan.client.registered_attributes import RegisteredAttributes
from mulligan.client.served_agents import ServedAgents
from mulligan.client.settings import settings
from mulligan.features import OWN, installed
from mulligan.features.feature_parts import FeatureParts
from mulligan.live.publisher import Publisher
from mulligan.observe.telemetry import Telemetry
from mulligan.prices import Prices
from mulligan.worker.activity_workers import MODELS_SUFFIX, activity_workers, queues_beside
from mulligan.worker.all_endpoints import all_endpoints
from mulligan.worker.group import WorkerGroup
from mulligan.worker.live_publisher import live_publisher, publishing
from mulligan.worker.loading import LoadedModules
from mulligan.worker.logs import ActivityLogFields, say
from mulligan.worker.options import (
    activity_worker_options,
    agent_worker_options,
    longest_heartbeat_interval,
    model_worker_options,
)
from mulligan.worker.other_agents import served_agents, warning_of_other_agents
from mulligan.worker.poll_monitor import ActivitySlots, PollMonitor, activity_monitor
from mulligan.worker.sdk_workarounds.workaround_runner import WorkaroundRunner, apply_workarounds
from mulligan.worker.sdk_workarounds.workflow_cache import WorkflowCache
from mulligan.worker.supervisor_link import SupervisorLink
from mulligan.workflows.agent_list_workflow import AgentListWorkflow
from mulligan.workflows.agent_workflow import AgentWorkflow
from mulligan.workflows.clean_up_workflow import CleanUpWorkflow
from mulligan.workflows.feature import Feature
from mulligan.workflows.features import LOADED_FEATURES, with_loaded
from mulligan.workflows.people.gone_tool import HAS_TOOL

PASSED_THROUGH = (
    # Values and errors must be the same classes inside and outside of workflows, and these modules have no side effects.
    # Workflow code does not pass through: the sandbox imports it again, and checks it. But the features of loaded modules,
    # which do, are derived from this class, and name the results and waits that the loop compares with.
    "mulligan.workflows.feature",
    "mulligan.workflows.scheduling",
    "mulligan.workflows.waits",
    *(
        f"mulligan.{module.name}"
        for module in iter_modules([str(Path(__file__).parents[1])])
        if module.name != "workflows"
    ),
    "pydantic",  # no side effects, and its models are slow to build again for each workflow
    "pydantic_core",
    "jsonschema",  # validates an agent's output that is declared as a JSON schema; no side effects
    "referencing",
    "openai",  # users' modules may import it, and a second import in the sandbox stops the worker
    "anthropic",
    "google.genai",
    "opentelemetry",  # the telemetry of Mulligan uses it; has process-wide state
    "zstandard",  # a C extension; no side effects
)

CACHED_WORKFLOWS, WORKFLOW_TASKS, ACTIVITIES = 1000, 100, 100
"""The defaults of temporalio's Worker."""

WORKFLOWS = [
    *(AgentWorkflow, AgentListWorkflow, CleanUpWorkflow),
    *(each for feature in OWN for each in feature.workflows or ()),
]
SECONDS_AFTER_GRACE = 10
"""Seconds beyond the grace time that a failed worker may take to stop."""


def sandbox(
    loaded: LoadedModules, restrictions: SandboxRestrictions = SandboxRestrictions.default
) -> SandboxedWorkflowRunner:
    """Temporal's sandbox for workflow code, with the modules that pass through."""
    # A second import of a loaded module in the sandbox would declare its agents twice.
    passed_through = restrictions.with_passthrough_modules(*PASSED_THROUGH, *loaded.modules)
    return SandboxedWorkflowRunner(restrictions=passed_through)


class LoadedFeatures(Interceptor):
    """Gives a worker's workflows the features of its loaded modules, and lets them ask for its tools.

    Raises:
        DeclarationError: one has a name that another feature has.
    """

    def __init__(self, loaded: LoadedModules) -> None:
        self.classes: tuple[type[Feature], ...] = tuple(
            dict.fromkeys(kind for each in loaded.features if (kind := each.workflow) is not None)
        )
        self._installed, self._registry = with_loaded(self.classes), loaded.registry
        self.workflows: list[type] = [each for feature in loaded.features for each in feature.workflows or ()]
        """The workflows that they start beside the run."""

    @property
    def model_calls(self) -> list[str]:
        """The activities that the limits of model calls apply to, by their types; Mulligan's own too."""
        return [name for name, row in self._installed.schedules.items() if row.calls_model]

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> None:  # noqa: A002 - Temporal's name
        """Set the functions for that."""
        input.unsafe_extern_functions[LOADED_FEATURES] = lambda: self.classes
        input.unsafe_extern_functions[HAS_TOOL] = self._registry.has_tool


class AgentActivities:
    """The activities of one worker for the loaded modules, and their shared services."""

    def __init__(
        self,
        loaded: LoadedModules,
        telemetry: Telemetry,
        model_task_queue: str | None = None,
        served: ServedAgents | None = None,
        tokens: CallbackTokens | None = None,
        providers: AvailableProviders | None = None,
        live: Publisher | None = None,
    ) -> None:
        """`model_task_queue`: the task queue of model calls, if it is not that of their run. `served`, `live`: see Services.

        `tokens`, `providers`: those by the settings if None.
        """
        worker_settings, registry = settings(), loaded.registry
        endpoints = all_endpoints(registry, worker_settings.endpoints)
        children = ChildProcesses(secret_names=secret_names(registry, endpoints.values()))
        servers, resources = McpServers(children), _resources(loaded)
        prices, contents = Prices.load(worker_settings.prices), configured_content_store(worker_settings)
        runtime = ToolRuntime(telemetry.metrics.change_hung_threads)
        self._services = services = Services(
            registry=registry,
            agents=RunAgents(registry, runtime, endpoints, AgentVersions(registry, contents), resources),
            providers=providers or AvailableProviders(registry.scripts, endpoints),
            definitions=Definitions(registry, contents),
            conversations=ConversationCache(worker_settings.prefix_cache_bytes, telemetry.metrics.change_cache_size),
            telemetry=telemetry,
            runtime=runtime,
            child_processes=children,
            resources=resources,
            tools=ToolFinder(registry, servers),
            mcp_servers=servers,
            retry_budget=RetryBudget(telemetry.metrics),
            prices=prices,
            budgets=_spending(worker_settings.budgets, prices, _queue_of_runs(model_task_queue, served)),
            registered_attributes=RegisteredAttributes(),
            callback_tokens=tokens or callback_tokens(activity.client),
            contents=contents,
            carry_bytes=CARRY_BYTES if worker_settings.external_storage else None,
            live=live,
            live_pace=_live_pace(worker_settings.live_text_seconds),
            model_task_queue=model_task_queue,
            served=served,
        )
        run_records = RecordRunActivities(services)
        self.all: list[Callable[..., Any]] = [
            *(OpenRunActivity(services).open_run, CallModelActivity(services).call_model),
            CallToolActivity(services).call_tool,
            *(run_records.record_failed_call, run_records.finish_run),
            RecordDecisionActivity(services).record_decision,
            *(CheckEditActivity(services).check_edit, CheckAnswerActivity(services).check_answer),
            ListAgentsActivity(services).list_agents,
            *dict.fromkeys(each for feature in (*OWN, *loaded.features) for each in _activities(feature, services)),
        ]

    def stop_without_threads(self, group: WorkerGroup) -> None:
        """Let the workers of these activities stop when functions that hang leave no thread for others."""
        self._services.runtime.bounds.on_used_up = group.fail

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[list[Callable[..., Any]]]:
        """The activities, with users' resources and MCP servers open while the block runs.

        Raises:
            DeclarationError: a module's `resources()` failed.
        """
        try:
            async with self._services.resources.opened(self._services.runtime), self._services.mcp_servers.running():
                yield self.all
        finally:
            self._services.runtime.close()
            await self._services.child_processes.close()
            await self._services.providers.close()


def _activities(feature: FeatureParts, services: Services) -> Sequence[Callable[..., Any]]:
    activities = feature.activities or ()
    return activities(services) if callable(activities) else activities


def _live_pace(seconds: float | None) -> LivePace | None:
    """The pace of the heartbeats with what models write. `seconds`: the setting."""
    if seconds is None:
        return LivePace(SLOWEST, FASTEST)
    return LivePace(seconds) if seconds else None


def _spending(file: str, prices: Prices, task_queue: str | None) -> Spending:
    """What limits model calls: of the feature that does, if there is one."""
    limit = next(iter(installed("spending").values()), None)
    return limit(file, prices, task_queue) if limit is not None else Spending()


def _queue_of_runs(model_task_queue: str | None, served: ServedAgents | None) -> str | None:
    """The worker's own task queue, where it is known here."""
    if served is not None:
        return served.task_queue
    return model_task_queue.removesuffix(MODELS_SUFFIX) if model_task_queue else None


def with_agents(
    config: WorkerConfig,
    loaded: LoadedModules,
    activities: Iterable[Callable[..., Any]],
    cache: WorkflowCache,
    link: SupervisorLink | None = None,
    live: Publisher | None = None,
) -> WorkerConfig:
    """Add agents to the configuration of a worker: their workflow, their activities, and the options that these need.

    The caller attaches `cache` to the worker. `link`: the connection to the supervisor of this process, if it has one.
    `live`: what tells those who watch that a run has news.
    """
    if not config.get("activity_executor") and not all(map(inspect.iscoroutinefunction, loaded.activities)):
        # For `def` activities of users. Mulligan's own are coroutines; the executor starts threads only when needed.
        slots = config.get("max_concurrent_activities") or ACTIVITIES
        config["activity_executor"] = ThreadPoolExecutor(slots, thread_name_prefix="activity")
    unsandboxed = config.get("unsandboxed_workflow_runner") or UnsandboxedWorkflowRunner()
    features = LoadedFeatures(loaded)
    workflows = [*WORKFLOWS, *features.workflows, *loaded.workflows]
    config["workflows"] = without_duplicates(config.get("workflows"), workflows)
    config["interceptors"] = [*(config.get("interceptors") or ()), ActivityLogFields(), features]
    config["activities"] = without_duplicates(config.get("activities"), [*activities, *loaded.activities])
    sandboxed, on_task = with_passthrough(config.get("workflow_runner"), loaded), link.send_run if link else None
    on_done = live.news if live else None
    config["workflow_runner"] = WorkaroundRunner(sandboxed, cache, on_task, on_done)
    config["unsandboxed_workflow_runner"] = WorkaroundRunner(unsandboxed, cache, on_task, on_done)
    limits = cache.limits(config.get("max_concurrent_workflow_tasks") or WORKFLOW_TASKS)
    config["max_cached_workflows"] = limits["max_cached_workflows"]
    # Without a cache: one task at a time (see WorkflowCache.limits).
    if not cache.size:
        config["max_concurrent_workflow_tasks"] = limits["max_concurrent_workflow_tasks"]
    client = config.get("client")
    server = client.service_client.config.target_host if client else configured_address()
    longest = longest_heartbeat_interval(settings(), server)
    config["max_heartbeat_throttle_interval"] = min(config.get("max_heartbeat_throttle_interval") or longest, longest)
    return config


def without_duplicates(configured: Iterable[Any] | None, added: Iterable[Any]) -> list[Any]:
    """Join two lists: a worker's own configuration may already contain a workflow or activity of a loaded module."""
    return list(dict.fromkeys([*(configured or ()), *added]))


def with_passthrough(runner: WorkflowRunner | None, loaded: LoadedModules) -> WorkflowRunner:
    """The runner with Mulligan's modules passed through its sandbox; a runner without a sandbox is returned unchanged."""
    if runner is None:
        return sandbox(loaded)
    if isinstance(runner, SandboxedWorkflowRunner):
        return dataclasses.replace(runner, restrictions=sandbox(loaded, runner.restrictions).restrictions)
    return runner


@asynccontextmanager
async def running_worker(
    client: Client, loaded: LoadedModules, telemetry: Telemetry, task_queue: str, link: SupervisorLink | None = None
) -> AsyncIterator[WorkerGroup]:
    """Run a worker for the loaded modules while the block runs. `link`: to the supervisor of this process, if it has one.

    Raises:
        WorkerStoppedError: the worker stopped by itself. The block was cancelled, unless the task that entered it has ended.
    """
    worker_settings = settings()
    served = served_agents(loaded, task_queue) if not worker_settings.build_id else None
    model_task_queue = f"{task_queue}{MODELS_SUFFIX}" if worker_settings.limits_model_calls else None
    cache, model_calls = WorkflowCache(worker_settings.max_cached_workflows), LoadedFeatures(loaded).model_calls
    reported: list[Interceptor] = [link] if link else []
    group = WorkerGroup(say, seconds_to_stop=worker_settings.grace_seconds + SECONDS_AFTER_GRACE)
    live = live_publisher()
    agent_activities = AgentActivities(loaded, telemetry, model_task_queue, served, live=live)
    agent_activities.stop_without_threads(group)
    async with agent_activities.opened() as activities, publishing(live):
        slots = ActivitySlots(worker_settings.max_concurrent_activities)
        identity = f"{client.identity}{served.tag}" if served else client.identity
        config = agent_worker_options(worker_settings) | {
            "client": client,
            "task_queue": task_queue,
            "identity": identity,
            "interceptors": [slots, *reported],
            "on_fatal_error": group.on_fatal_error(task_queue),
        }
        worker = Worker(**with_agents(cast("WorkerConfig", config), loaded, activities, cache, link, live))
        apply_workarounds(worker, cache, say)
        of_models = (model_calls, model_worker_options(worker_settings)) if model_task_queue else None
        queues = queues_beside(task_queue, served, activities, activity_worker_options(worker_settings), of_models)
        monitors = [
            PollMonitor(client, task_queue, "workflow", say),
            activity_monitor(client, task_queue, say, slots, worker_settings.max_activities_per_second),
        ]
        beside, their_monitors = activity_workers(client, queues, reported, group)
        workers, monitors = [worker, *beside], [*monitors, *their_monitors]
        async with group.running(workers, monitors), warning_of_other_agents(client, served):
            yield group


def _resources(loaded: LoadedModules) -> Resources:
    return Resources(loaded.resources, loaded.modules_of_agents, loaded.modules_of_tools)
