"""What happened during the pauses of a seed that were too long: for whoever looks for their cause."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from google.protobuf.json_format import MessageToDict
from temporalio.api.enums.v1 import EventType

from tests.chaos.faults import Pause, pauses_of
from tests.chaos.plan import Outcome

LONG = 2.0
"""Seconds: less than the server waits for a lost workflow task or a heartbeat, more than a busy machine adds."""
FIELDS = (
    "identity",
    "attempt",
    "cause",
    "scheduledEventId",
    "timeoutType",
    "taskQueue",
    "activityType",
    "activityId",
    "failure",
    "lastFailure",
)


def long_pauses(outcome: Outcome) -> str:
    """Each pause of more than LONG seconds, with what is known of the run, the kills and the workers in that time; "" if none is."""
    return "\n\n".join(
        "\n".join([f"{_time(pause.since)} {pause.run}: {pause.seconds:.3f} s, {pause.kind}", *_lines(outcome, pause)])
        for pause in pauses_of(outcome)
        if pause.seconds > LONG
    )


def _lines(outcome: Outcome, pause: Pause) -> list[str]:
    first, last = pause.since - 1, pause.since + pause.seconds + 0.5
    found = [
        *((kill.at, f"KILL {kill.pid} {kill.point}") for kill in outcome.kills),
        *((at, f"model call for step {step}") for at, run, step in outcome.model_calls if run == pause.run),
        *((at, "model call broken") for at, run in outcome.broken_model_calls if run == pause.run),
        *((e["at"], f"{e['event']} {e}") for e in outcome.ledger if e["run"] == pause.run),
        *_events(outcome.history.get(pause.run, [])),
        *_of_others(outcome, pause.run),
        *((at, f"STDERR {line}") for at, line in outcome.said),
    ]
    return [f"  {_time(at)} {text[:400]}" for at, text in sorted(found) if first <= at <= last]


def _of_others(outcome: Outcome, run: str) -> Iterator[tuple[float, str]]:
    """Which processes served other runs, and when."""
    for name, history in outcome.history.items():
        for at, text in _events(history):
            if name != run and "TASK_STARTED" in text:
                yield at, f"{name} {text}"


def _events(history: list[Any]) -> Iterator[tuple[float, str]]:
    for event in history:
        [(_, attributes)] = [each for each in event.ListFields() if each[0].name.endswith("_attributes")]
        fields = {name: value for name, value in MessageToDict(attributes).items() if name in FIELDS}
        yield (
            event.event_time.ToNanoseconds() / 1e9,
            f"event {event.event_id} {EventType.Name(event.event_type)[11:]} {fields}",
        )


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S.%f")[:-3]
