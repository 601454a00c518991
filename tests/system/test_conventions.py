"""OpenTelemetry's GenAI conventions: each attribute and metric is ours by its prefix, or one of theirs with its type and unit."""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path
from typing import Any

from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn

OURS = ("mulligan.", "ai.toolCall.", "temporal.")
TYPES: dict[str, Any] = {
    "string": str,
    "Enum": str,
    "int": int,
    "double": float,
    "boolean": bool,
    "string[]": (list, tuple),
}
"""`any` is a structure, which a span carries as JSON: a text."""


def attribute_types(source: str) -> dict[str, str]:
    return {
        name: kind
        for kind, name in re.findall(r'// Type: (\S+)(?:(?!// Type: ).)*?attribute\.Key\("([^"]+)"\)', source, re.S)
    }


def metric_units(source: str) -> dict[str, str]:
    found = re.findall(r'Name\(\) string \{\s*return "([^"]+)".*?Unit\(\) string \{\s*return "([^"]+)"', source, re.S)
    return dict(found)


async def test_every_attribute_and_metric_is_in_the_conventions_or_has_our_prefix(lab: Lab, conventions: Path) -> None:
    types = attribute_types((conventions / "attributes.go").read_text())
    units = metric_units((conventions / "metrics.go").read_text())
    assert types["gen_ai.usage.input_tokens"] == "int"
    assert units["gen_ai.client.token.usage"] == "{token}"
    telemetry = Telemetry()  # its own: metrics are complete when it is shut down, and the lab's serves other tests
    at = Lab(lab.client, lab.model, lab.otlp, telemetry, f"conventions-{uuid.uuid4().hex[:6]}")
    wrong: set[str] = set()
    seen: set[str] = set()
    async with running_worker(lab.client, load(["tests.support.shop_agents"]), telemetry, at.task_queue):
        calls = [
            ("click", '{"selector": "#a"}', None),
            ("clik", "{}", None),
            ("explode", "{}", None),
            ("click", "{", None),
        ]
        ran = await at.run([Turn(calls=calls), DONE], agent="shop")
    await asyncio.to_thread(telemetry.shutdown)
    attributes = [each for span in ran.spans for each in span.attributes.items()]
    metrics = lab.otlp.metrics()
    attributes += [
        each
        for metric in metrics
        for point in metric.points
        for each in point.attributes.items()
        if metric.name.startswith("gen_ai.")
    ]
    for name, value in attributes:
        seen.add(name)
        kind = types.get(name)
        if not name.startswith(OURS) and (kind is None or not isinstance(value, TYPES.get(kind, str))):
            wrong.add(f"{name}: {value!r} is not of type {kind}")
    for metric in metrics:
        if metric.name.startswith("gen_ai.") and metric.unit != units.get(metric.name):
            wrong.add(f"{metric.name}: unit {metric.unit}, not {units.get(metric.name)}")
    assert wrong == set()
    assert {"gen_ai.usage.input_tokens", "gen_ai.response.finish_reasons", "gen_ai.tool.call.id", "error.type"} <= seen
    assert any(metric.name.startswith("gen_ai.") for metric in metrics)
