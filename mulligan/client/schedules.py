"""Temporal Schedules that start runs: what `mulligan schedule` creates and shows."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleDescription,
    ScheduleIntervalSpec,
    ScheduleListDescription,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
)

from mulligan.client.callback_tokens import KEY_SCHEDULE
from mulligan.client.cron import check_cron
from mulligan.client.start_run import start_argument
from mulligan.errors import DeclarationError
from mulligan.run_input import RunInput
from mulligan.wire.run_context import AGENT_WORKFLOW
from mulligan.wire.start_input import StartInput
from mulligan.wire.start_memo import start_options
from mulligan.wire.times import iso
from mulligan.wire.ui_summary import task_of

OVERLAPS = {policy.name.lower().replace("_", "-"): policy for policy in ScheduleOverlapPolicy}
"""What happens if it is time for a run while the one before is open, in Temporal's words."""
_MEMO = "mulligan_schedule"
"""The key in a schedule's memo by which lists know those that start runs: the agent, and the timing in words."""
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When runs start: at each interval (`every`), or by a cron expression in a time zone (IANA name; None: UTC).

    `jitter`: each start is delayed by a random time of at most that. `catchup_window`: how late a start may be that was
    missed while Temporal was down; None: Temporal's default, a year.

    Raises:
        DeclarationError: `cron` does not have five fields, or names a time that its time zone leaves out.
    """

    every: timedelta | None = None
    cron: str | None = None
    timezone: str | None = None
    overlap: str = "skip"
    jitter: timedelta | None = None
    catchup_window: timedelta | None = None

    def __post_init__(self) -> None:
        if self.cron is not None:
            check_cron(self.cron, self.timezone)

    @property
    def text(self) -> str:
        """Describe the timing in words."""
        if self.every is not None:
            return f"every {self.every}"
        return f"{self.cron} ({self.timezone or 'UTC'})"

    @property
    def spec(self) -> ScheduleSpec:
        """The timing in Temporal's form."""
        return ScheduleSpec(
            intervals=[ScheduleIntervalSpec(every=self.every)] if self.every is not None else [],
            cron_expressions=[self.cron] if self.cron is not None else [],
            time_zone_name=self.timezone,
            jitter=self.jitter,
        )

    @property
    def policy(self) -> SchedulePolicy:
        """The policy in Temporal's form."""
        policy = SchedulePolicy(overlap=OVERLAPS[self.overlap])
        if self.catchup_window is not None:
            policy.catchup_window = self.catchup_window
        return policy


def parse_interval(text: str, option: str) -> timedelta:
    """A duration such as `90s`, `1h30m` or `2d`.

    Raises:
        DeclarationError: it is none, or is not longer than 0. The message names the option.
    """
    if re.fullmatch(r"(\d{1,9}(\.\d+)?[smhd])+", text):
        parts = re.findall(r"([\d.]+)([smhd])", text)
        try:
            length = timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
        except OverflowError:
            length = timedelta(0)
        if length > timedelta(0):
            return length
    raise DeclarationError(f"{option} is {text[:100]!r}; give a duration such as 90s, 30m, 1h30m or 2d.")


async def create_schedule(client: Client, name: str, run_input: RunInput, timing: Timing, task_queue: str) -> None:
    """Create a schedule. Each run's id is the schedule's name and the time of its start.

    Raises:
        InvalidRunInputError: the input is too large for Temporal.
        ScheduleAlreadyRunningError: there is a schedule of that name.
        RPCError: Temporal does not answer, or refuses the timing.
    """
    action = ScheduleActionStartWorkflow(
        AGENT_WORKFLOW,
        start_argument(client, run_input),
        id=name,
        task_queue=task_queue,
        **start_options(StartInput.of(run_input)),
    )
    about = {"agent": run_input.agent, "timing": timing.text, "prompt": task_of(run_input)}
    about |= {"tenant": run_input.tenant} if run_input.tenant else {}
    schedule = Schedule(action=action, spec=timing.spec, policy=timing.policy)
    await client.create_schedule(name, schedule, memo={_MEMO: about})


async def list_schedules(client: Client) -> AsyncIterator[dict[str, Any]]:
    """The schedules of the namespace that `create_schedule` made, as JSON."""
    async for listed in await client.list_schedules():
        about = (await listed.memo()).get(_MEMO) if listed.id != KEY_SCHEDULE else None
        if isinstance(about, dict) and listed.schedule is not None:
            yield _summary(listed, about)


async def describe_schedule(client: Client, name: str) -> dict[str, Any]:
    """A schedule as JSON, with its policy and its newest runs.

    Raises:
        LookupError: it does not start runs of agents.
        RPCError: there is none of that name (NOT_FOUND), or Temporal does not answer.
    """
    described = await client.get_schedule_handle(name).describe()
    about = (await described.memo()).get(_MEMO)
    if name == KEY_SCHEDULE or not isinstance(about, dict):
        raise LookupError(name)
    policy, info = described.schedule.policy, described.info
    return {
        **_summary(described, about),
        "overlap": next(word for word, known in OVERLAPS.items() if known == policy.overlap),
        "jitter_seconds": (described.schedule.spec.jitter or timedelta(0)).total_seconds(),
        "catchup_window_seconds": (policy.catchup_window or timedelta(0)).total_seconds(),
        "runs_started": info.num_actions,
        "skipped_as_one_was_open": info.num_actions_skipped_overlap,
        "missed": info.num_actions_missed_catchup_window,
        "running": [action.workflow_id for action in info.running_actions if hasattr(action, "workflow_id")],
    }


def _summary(schedule: ScheduleDescription | ScheduleListDescription, about: dict[str, Any]) -> dict[str, Any]:
    assert schedule.schedule is not None
    assert schedule.info is not None
    state = schedule.schedule.state
    recent = [
        action.action.workflow_id for action in schedule.info.recent_actions if hasattr(action.action, "workflow_id")
    ]
    return {
        "name": schedule.id,
        **{field: about.get(field) for field in ("agent", "timing", "prompt", "tenant")},
        "paused": state.paused,
        "note": state.note or None,
        "next_times": [iso(at, "seconds") for at in schedule.info.next_action_times[:5]],
        "recent": recent[-5:],
    }
