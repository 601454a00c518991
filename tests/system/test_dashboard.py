"""Queries of the dashboard and the alerts match the metrics that a collector and a server expose, and no metric of Mulligan is
without a query.

The metrics come from real runs on a real Temporal server, from worker processes, through the collector configuration of
deploy/. So a metric or label that is renamed here, by the SDK or by the collector, fails a test.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import promql_parser
import pytest
import yaml
from opentelemetry.metrics import Instrument
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from promql_parser import MatchOp
from temporalio.client import Client, WorkflowFailureError

from mulligan import connect
from mulligan.client.served_agents import without_tag
from mulligan.devserver import find_temporal
from mulligan.observe.metrics import Metrics
from tests.support.command_server import start_command
from tests.support.jaeger_server import JaegerServer
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/mulligan.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus-alerts.yml").read_text())["groups"][0]["rules"]
QUERIES = {f"{panel['title']}, {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]}
QUERIES |= {alert["alert"]: alert["expr"] for alert in ALERTS}

Series = list[dict[str, str]]
"""The labels of each series; the name of the metric is `__name__`, as in Prometheus."""


@asynccontextmanager
async def process(*command: str | Path, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process without output, ended with the block."""
    quiet = asyncio.subprocess.DEVNULL
    running = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **env}, cwd=ROOT, stdin=quiet, stdout=quiet, stderr=quiet
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.terminate()
        await running.wait()


@asynccontextmanager
async def worker(*options: str, **env: str) -> AsyncIterator[None]:
    """`mulligan worker` without output, ended with the block."""
    quiet = asyncio.subprocess.DEVNULL
    running = await start_command("worker", *options, env={**os.environ, **env}, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        running.terminate()
        await running.wait()


async def connected(address: str) -> Client:
    while True:
        try:
            return await connect(address)
        except RuntimeError:
            await asyncio.sleep(0.1)


async def run_all_kinds(client: Client, model: OpenAIServer) -> None:
    """Mistakes, retries, a hung tool, completed and failed runs, a rate-limited model, a stuck workflow, a queue without workers."""
    bad_calls = [("click", "{}", None), ("click", '{"selector": "#a"}', None), ("a_made_up_tool", "{}", None)]
    bad_tools = [("flaky", "{}", None), ("explode", "{}", None), ("hang_thread", "{}", None)]
    done = Turn(text="done", fail_first=[Failure(503)])
    model.script("good", [Turn(calls=bad_calls), Turn(calls=bad_tools), done])
    model.script("bad", [Turn(calls=[("explode", "{}", None)])])
    for agent, scripted in (("counted", "good"), ("strict", "bad")):
        given = {"agent": agent, "prompt": "Go.", "model": f"openai-chat:{scripted}"}
        try:
            await client.execute_workflow("AgentWorkflow", given, id=agent, task_queue="agents")
        except WorkflowFailureError:
            assert agent == "strict"
    await client.execute_workflow(
        "AgentWorkflow", {"agent": "nested", "prompt": "Go."}, id="nested", task_queue="agents"
    )
    # One after the other: each worker gets its own 429, and holds back the calls after it. Both count as failed
    # attempts.
    model.script("limited", [Turn(failure=Failure(status=429, headers={"Retry-After": "50"}))])
    for number in range(6):
        given = {"agent": "strict", "prompt": "Go.", "model": "openai-chat:limited"}
        run = await client.start_workflow("AgentWorkflow", given, id=f"limited-{number}", task_queue="agents")
        while not any(
            call.HasField("last_failure") for call in (await run.describe()).raw_description.pending_activities
        ):
            await asyncio.sleep(0.1)
    await client.start_workflow("Drifts", id="drifts", task_queue="drift")
    await client.start_workflow("AgentWorkflow", {}, id="waits", task_queue="nobodys-queue")


@pytest.fixture(scope="module")
async def exposed(
    model: OpenAIServer, jaeger: JaegerServer, jaeger_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Series]:
    """The series that Prometheus would scrape, as soon as every query finds one, or after a timeout."""
    names = (
        "PORT",
        "UI",
        "SERVER",
        "OTLP_GRPC_PORT",
        "OTLP_HTTP_PORT",
        "HEALTH_PORT",
        "METRICS_PORT",
        "OWN_METRICS_PORT",
    )
    port = dict(zip(names, map(str, free_ports(len(names))), strict=True))
    ports = {"--port": port["PORT"], "--ui-port": port["UI"], "--metrics-port": port["SERVER"]}
    # The server reports its backlog when it saves its progress: once a minute by default.
    often = ("--dynamic-config-value", 'matching.updateAckInterval="1s"')
    server = (await find_temporal(lambda _: None), "server", "start-dev", "--ip", "127.0.0.1", *often)
    to = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port['OTLP_GRPC_PORT']}",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }
    prices = tmp_path_factory.mktemp("prices") / "prices.json"
    prices.write_text('{"models": {"good": {"input": 2, "output": 10}}}')
    settings = {**model.environment(), **to, "TEMPORAL_ADDRESS": f"127.0.0.1:{port['PORT']}"}
    settings["MULLIGAN_PRICES"] = str(prices)
    collector = {**port, "JAEGER_OTLP": jaeger.otlp_url.removeprefix("http://")}
    of_agents = ("--load", "tests.support.shop_agents", "--load", "tests.support.sub_agent_teams")
    drifting = ("--load", "tests.support.drifting_workflow", "--task-queue", "drift")
    # On one core Go hands over no work between threads (tests/support/temporal.py).
    async with process(*server, *(part for pair in ports.items() for part in pair), GOMAXPROCS="1"):
        client = await connected(settings["TEMPORAL_ADDRESS"])
        async with (
            process(jaeger_program, "--config", ROOT / "deploy/collector.yaml", **collector),
            worker(*of_agents, **settings),
            worker(*of_agents, **settings),
            worker(*drifting, **settings, MULLIGAN_MAX_CACHED_WORKFLOWS="0"),
        ):
            await run_all_kinds(client, model)
            found = await all_but_unpolled(port)
        yield [*found, *await unpolled(client, port["SERVER"])]


UNPOLLED = "no_poller_tasks"
"""The server counts tasks without a poller when they arrive, two minutes after the queue was loaded."""
SECONDS_FOR_SERIES = 300
"""After that the tests report which are missing."""


async def all_but_unpolled(port: Mapping[str, str]) -> Series:
    """The series as soon as each query but the one has some, and both workers theirs."""
    found: Series = []
    asked = [one for query in QUERIES.values() for one in selectors(query) if one.name != UNPOLLED]
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_FOR_SERIES):
            while not all(matching(found, one) for one in asked) or len(workers_of(found, "agents")) < 2:
                await asyncio.sleep(1)
                found = [*await scrape(port["METRICS_PORT"]), *await scrape(port["SERVER"])]
    return found


async def unpolled(client: Client, port: str) -> Series:
    """The series of tasks that nobody polls: nothing but the server has to run for it."""
    found: Series = []
    asked = [one for query in QUERIES.values() for one in selectors(query) if one.name == UNPOLLED]
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_FOR_SERIES):
            while not all(matching(found, one) for one in asked):
                await asyncio.sleep(2)
                await client.start_workflow("AgentWorkflow", {}, id=f"waits-{uuid4()}", task_queue="nobodys-queue")
                found = [each for each in await scrape(port) if each["__name__"] == UNPOLLED]
    return found


async def scrape(port: str) -> Series:
    """The series at /metrics."""
    async with httpx2.AsyncClient() as http:
        text = (await http.get(f"http://127.0.0.1:{port}/metrics")).raise_for_status().text
    lines = re.findall(r"^(\w+)(?:\{(.*)\})? ", text, re.MULTILINE)
    return [{"__name__": name, **dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))} for name, labels in lines]


def nodes(query: str) -> Iterator[promql_parser.Expr]:
    """The parts of a query, with the dashboard's variables replaced as Grafana does for "All"."""
    found: list[promql_parser.Expr] = []
    query = query.replace("$__rate_interval_ms", "300000").replace("$__rate_interval", "5m")
    query = re.sub(r"\$\w+", ".*", query)
    promql_parser.walk(promql_parser.parse(query), lambda node: found.append(node))
    yield from found


def selectors(query: str) -> list[promql_parser.VectorSelector]:
    """The selectors of a query."""
    instant = [node for node in nodes(query) if isinstance(node, promql_parser.VectorSelector)]
    ranges = [node.vector_selector for node in nodes(query) if isinstance(node, promql_parser.MatrixSelector)]
    return instant + ranges


def matching(series: Series, selector: promql_parser.VectorSelector) -> Series:
    """The series that a selector matches, by Prometheus' rules: a missing label is empty."""

    def takes(labels: dict[str, str], matcher: promql_parser.Matcher) -> bool:
        value, negates = labels.get(matcher.name, ""), matcher.op in (MatchOp.NotEqual, MatchOp.NotRe)
        is_text = matcher.op in (MatchOp.Equal, MatchOp.NotEqual)
        fits = value == matcher.value if is_text else re.fullmatch(matcher.value, value) is not None
        return fits != negates

    return [
        labels
        for labels in series
        if labels["__name__"] == selector.name and all(takes(labels, matcher) for matcher in selector.matchers.matchers)
    ]


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
async def test_each_query_of_the_dashboard_and_alerts_finds_a_series(exposed: Series, query: str) -> None:
    """Each label that a query filters or groups by exists on the metric."""
    for selector in selectors(query):
        assert matching(exposed, selector), f"nothing is {selector}"
        known = {label for labels in exposed if labels["__name__"] == selector.name for label in labels}
        assert {matcher.name for matcher in selector.matchers.matchers} <= known
    for node in nodes(query):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            for selector in selectors(node.expr.prettify()):
                assert set(node.modifier.labels) <= {label for found in matching(exposed, selector) for label in found}


NAMES = {selector.name for query in QUERIES.values() for selector in selectors(query) if selector.name}
"""The metrics of all queries, as Prometheus names them."""


def test_each_metric_of_mulligan_is_in_a_panel_or_an_alert_and_in_the_docs() -> None:
    """All instruments are created in one place, `Metrics`; the collector changes dots, and appends the unit and the kind."""
    metrics = Metrics(InMemoryMetricReader(), exports=False)
    created = {str(getattr(value, "name", "")) for value in vars(metrics).values() if isinstance(value, Instrument)}
    assert len(created) > 10
    page = (ROOT / "docs/traces.md").read_text()
    for name in created:
        exposed = rf"{name.replace('.', '_')}(_seconds|_bytes|_USD)?(_total|_count|_sum|_bucket)?"
        assert any(re.fullmatch(exposed, asked) for asked in NAMES), f"no panel and no alert shows {name}"
        assert f"`{name}`" in page, f"docs/traces.md does not have {name}"


def test_instruments_are_created_in_one_place_and_by_workers_only() -> None:
    """So the test above sees all of them, and docs/traces.md is right that `serve` and the supervisor send none."""
    sources = {
        file: file.read_text()
        for room in ("mulligan", "workflows", "activities", "tools")
        for file in sorted((ROOT / room).rglob("*.py"))
    }
    create = re.compile(r"create_(observable_)?(counter|histogram|gauge|up_down_counter)\(|get_meter\(")
    assert [str(file.relative_to(ROOT)) for file, text in sources.items() if create.search(text)] == [
        "mulligan/observe/metrics.py"
    ]
    sends = re.compile(r"\b(Telemetry|Metrics|temporal_runtime)\(")
    doors = [file for file in sources if file.relative_to(ROOT).parts[1] in {"serve", "supervisor"}]
    assert doors
    assert not [file for file in doors if sends.search(sources[file])]


async def test_each_metric_that_the_runs_emitted_is_in_a_query(exposed: Series) -> None:
    ours = {found["__name__"] for found in exposed if found["__name__"].startswith(("mulligan_", "gen_ai_"))}
    stems = {re.sub(r"_(bucket|count|sum)$", "", name) for name in NAMES}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in ours} <= stems


async def test_the_dashboard_variables_offer_namespaces_and_queues_of_workers_only(exposed: Series) -> None:
    """Not those of Temporal's internal workers. A worker with agents also has a queue of its own, whose name has a tag."""
    offered = {}
    for name, variable in VARIABLES.items():
        if asked := re.fullmatch(r"label_values\((.+), (\w+)\)", variable.get("definition", "")):
            [selector] = selectors(asked[1])
            offered[name] = {without_tag(found[asked[2]]) for found in matching(exposed, selector)}
    assert offered == {
        "namespace": {"default"},
        "task_queue": {"agents", "drift"},
        "agent": {"counted", "strict", "nested"},
        "model": {"good", "bad", "limited", "nested"},
    }


async def test_each_worker_has_its_own_series(exposed: Series) -> None:
    """Otherwise two workers of a queue would overwrite each other's counters. The same for Temporal's metrics."""
    assert len(workers_of(exposed, "agents")) == 2
    ours = {found["instance"] for found in exposed if found["__name__"] == "mulligan_run_steps_count"}
    assert ours <= workers_of(exposed, "agents")


def workers_of(series: Series, queue: str) -> set[str]:
    """The instances that poll a task queue."""
    [pollers] = selectors('temporal_num_pollers{service_name="temporal-core-sdk",poller_type="workflow_task"}')
    return {found.get("instance", "") for found in matching(series, pollers) if found["task_queue"] == queue}


def test_the_dashboard_can_be_provisioned_and_its_panels_are_complete() -> None:
    """It has what Grafana requires of a provisioned dashboard."""
    assert (DASHBOARD["uid"], DASHBOARD["schemaVersion"]) == ("mulligan", 41)
    assert "id" not in DASHBOARD
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    sources = [holder["datasource"] for panel in PANELS for holder in (panel, *panel["targets"])]
    sources += [variable["datasource"] for variable in VARIABLES.values() if variable["type"] == "query"]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    for panel in PANELS:
        assert panel["description"].count(". ") <= 3, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for query in QUERIES.values():
        assert set(re.findall(r"\$(\w+)", query)) <= {*VARIABLES, "__rate_interval", "__rate_interval_ms"}


def test_no_two_panels_overlap() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}

    for one, other in combinations(DASHBOARD["panels"], 2):
        assert not cells(one) & cells(other), (one["title"], other["title"])
    assert all(0 <= x < 24 for panel in DASHBOARD["panels"] for x, _ in cells(panel))


def test_legends_and_summaries_use_only_labels_that_are_grouped_by() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            assert names_in(target["legendFormat"], r"\{\{(\w+)\}\}") <= grouped_by(target["expr"]), panel["title"]
    for alert in ALERTS:
        assert names_in(alert["annotations"]["summary"], r"\$labels\.(\w+)") <= grouped_by(alert["expr"]), alert[
            "alert"
        ]
        assert alert["labels"]["severity"] in {"critical", "warning"}


def names_in(text: str, pattern: str) -> set[str]:
    return set(re.findall(pattern, text))


def grouped_by(query: str) -> set[str]:
    return {
        label
        for node in nodes(query)
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None
        for label in node.modifier.labels
    }


def test_each_panel_and_alert_links_to_a_section_of_a_page() -> None:
    """What to do is one click away; the section exists."""
    told = [panel["description"] for panel in PANELS] + [alert["annotations"]["runbook"] for alert in ALERTS]
    for text in told:
        [(page, anchor)] = re.findall(r"docs/([\w-]+\.md)#([\w-]+)", text)
        titles = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.M)
        assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
