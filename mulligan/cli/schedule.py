"""`mulligan schedule`: runs that start at times, by Temporal Schedules."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mulligan.cli._input import read_json_object
from mulligan.cli._terminal import OK, AsJson, CommandApp, connect_or_fail, fail, print_json, print_line
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from temporalio.client import ScheduleHandle

    from mulligan.client.schedules import Timing
    from mulligan.run_input import RunInput

schedule = CommandApp(
    help="Start runs at times: create, list, show, pause, resume, trigger, delete.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


Overlap = Literal["skip", "buffer-one", "buffer-all", "cancel-other", "terminate-other", "allow-all"]
"""Temporal's policies for a run that is due while the one before is open."""


@schedule.command()
async def create(
    name: Name,
    agent: Annotated[str, typer.Argument(help="The agent's name.")],
    prompt: Annotated[str, typer.Argument(help="The task for the agent.")],
    every: Annotated[str | None, typer.Option(help="The interval: 90s, 30m, 1h30m, 2d.", show_default=False)] = None,
    cron: Annotated[str | None, typer.Option(help='A cron expression: "0 9 * * MON".', show_default=False)] = None,
    timezone: Annotated[
        str | None, typer.Option(help="The time zone of --cron, as Europe/Berlin.", show_default="UTC")
    ] = None,
    overlap: Annotated[Overlap, typer.Option(help="If the run before is still open.")] = "skip",
    jitter: Annotated[
        str | None, typer.Option(help="Delay each start at random by up to this.", show_default="0s")
    ] = None,
    catchup_window: Annotated[
        str | None, typer.Option(help="How late to start runs missed while Temporal was down.", show_default="365d")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="For whom the runs are.", show_default=False)] = None,
    priority: Annotated[int | None, typer.Option(min=1, max=5, help="From 1 (first) to 5.", show_default="3")] = None,
    input: Annotated[  # noqa: A002 - it names the option
        str | None, typer.Option(help="More of the runs' input as JSON (`-`: stdin, `@FILE`).", show_default=False)
    ] = None,
    task_queue: Annotated[
        str | None, typer.Option(help="The task queue of the workers.", show_default="agents")
    ] = None,
) -> int:
    """Create a schedule that starts runs of an agent: with either --every or --cron.

    Example: `mulligan schedule create news assistant "What is new?" --cron "0 9 * * MON-FRI" --timezone Europe/Berlin`

    Exit code: 0 created, 2 wrong use, or there is a schedule of that name.
    """
    from mulligan.client.schedules import Timing, parse_interval
    from mulligan.client.settings import settings
    from mulligan.run_input import parse_run_input

    if (every is None) == (cron is None):
        fail(f"--every is {every!r}, --cron is {cron!r}; give one of them.")
    if timezone is not None and cron is None:
        fail(f"--timezone is {timezone!r}, which is for --cron: an interval has none. Leave it out.")
    fields = {} if input is None else read_json_object(input, "--input", '{"max_steps": 5}')
    given = {"agent": agent, "prompt": prompt, "tenant": tenant, "priority": priority}
    fields |= {key: value for key, value in given.items() if value is not None}
    timing = Timing(
        every=parse_interval(every, "--every") if every else None,
        cron=cron,
        timezone=timezone,
        overlap=overlap,
        jitter=parse_interval(jitter, "--jitter") if jitter else None,
        catchup_window=parse_interval(catchup_window, "--catchup-window") if catchup_window else None,
    )
    run_input, queue = parse_run_input(json.dumps(fields).encode()), task_queue or settings().task_queue
    return await _create(name, run_input, timing, queue)


async def _create(name: str, run_input: RunInput, timing: Timing, queue: str) -> int:
    from temporalio.client import ScheduleAlreadyRunningError

    from mulligan.client.schedules import create_schedule

    client = await connect_or_fail()
    try:
        await create_schedule(client, name, run_input, timing, queue)
    except ScheduleAlreadyRunningError:
        fail(
            f"there is a schedule {name!r} already; choose another name, or delete it: mulligan schedule delete {name}"
        )
    print_line(printable(name))
    return OK


@schedule.command("list")
async def list_all(as_json: AsJson = False) -> int:
    """List the schedules that start runs.

    Exit code: 0, or 2 with no server.
    """
    from mulligan.client.schedules import list_schedules

    client = await connect_or_fail()
    schedules = [each async for each in list_schedules(client)]
    if as_json:
        print_json(schedules)
        return OK
    for each in sorted(schedules, key=lambda entry: str(entry["name"])):
        following = (
            "paused" if each["paused"] else f"next {each['next_times'][0]}" if each["next_times"] else "no next run"
        )
        print_line(printable(f"{each['name']}  {each['agent']}  {each['timing']}  {following}"))
    return OK


@schedule.command()
async def show(name: Name, as_json: AsJson = False) -> int:
    """Show a schedule: its timing, its next times, its newest runs.

    Exit code: 0, or 2 if there is none of that name.
    """
    described = await _described(name)
    if as_json:
        print_json(described)
        return OK
    for field, value in described.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        if text not in (None, ""):
            print_line(printable(f"{field.replace('_', ' ')}: {text}"))
    return OK


@schedule.command()
async def pause(
    name: Name,
    reason: Annotated[str | None, typer.Option(help="Why; `show` prints it.", show_default=False)] = None,
) -> int:
    """Start no further runs until the schedule is resumed. Open runs go on.

    Exit code: 0 paused, 2 there is none of that name.
    """
    return await _change(name, lambda handle: handle.pause(note=reason), f"{name} is paused.")


@schedule.command()
async def resume(name: Name) -> int:
    """Start runs again.

    Exit code: 0 resumed, 2 there is none of that name.
    """
    return await _change(name, lambda handle: handle.unpause(), f"{name} starts runs again.")


@schedule.command()
async def trigger(name: Name) -> int:
    """Start a run now, also if the schedule is paused. --overlap of the schedule applies.

    Exit code: 0 triggered, 2 there is none of that name.
    """
    return await _change(name, lambda handle: handle.trigger(), f"{name} was triggered.")


@schedule.command()
async def delete(name: Name) -> int:
    """Delete a schedule. Open runs go on.

    Exit code: 0 deleted, 2 there is none of that name.
    """
    return await _change(name, lambda handle: handle.delete(), f"{name} was deleted.")


async def _described(name: str) -> dict[str, Any]:
    """A schedule; the command ends if it is not one of ours."""
    from temporalio.service import RPCError, RPCStatusCode

    from mulligan.client.schedules import describe_schedule

    client = await connect_or_fail()
    try:
        return await describe_schedule(client, name)
    except LookupError:
        fail(f"the schedule {name!r} starts no runs of agents; see `mulligan schedule list`.")
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            fail(f"there is no schedule {name!r}; see `mulligan schedule list`.")
        raise


async def _change(name: str, change: Callable[[ScheduleHandle], Coroutine[Any, Any, None]], message: str) -> int:
    await _described(name)
    client = await connect_or_fail()
    await change(client.get_schedule_handle(name))
    print_line(printable(message))
    return OK
