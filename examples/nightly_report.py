"""`reporter`: a report each night, at half the price, as nobody waits for it.

A schedule starts the run at three in the morning. Its model is called through OpenAI's Batch API: each answer may take until
the morning and costs half (docs/batch.md), and the run costs nothing while it waits. The report is a file of the workspace,
`reports/DAY.md`; it is written once, also if the run is retried. With a key:

    export OPENAI_API_KEY=… MULLIGAN_CONTENT_DIR=content
    uv run mulligan worker --load examples.nightly_report
    uv run mulligan schedule create nightly reporter "Report on yesterday." --cron "0 3 * * *" --timezone Europe/Berlin
    uv run mulligan schedule trigger nightly

Without a key, with a scripted model, which is called at once:

    uv run mulligan worker --load examples.nightly_report
    uv run mulligan start reporter "Report on yesterday." --input '{"model": "scripted:night"}' --wait
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TypedDict

from mulligan import Agent, Batch, Call, Message, Say, Script, last_result, tool
from mulligan.tools import write_file

SALES = {"lamps": (12, 9), "chairs": (3, 4), "tables": (1, 1)}
"""Sold yesterday, and the day before; in your own report, a database."""


class Sales(TypedDict):
    """What was sold of one kind on a day, and on the day before."""

    what: str
    sold: int
    before: int


class Day(TypedDict):
    """A day's sales."""

    day: date
    sales: list[Sales]


@tool
async def sales_of_yesterday() -> Day:
    """The sales of yesterday (UTC), and of the day before."""
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    return {
        "day": yesterday,
        "sales": [{"what": what, "sold": sold, "before": before} for what, (sold, before) in SALES.items()],
    }


reporter = Agent(
    name="reporter",
    model="openai:gpt-5-mini",
    instructions=(
        "You write a short report on yesterday's sales: what changed, and what somebody should look at. Save it as "
        "reports/DAY.md, where DAY is the date as YYYY-MM-DD, and answer with its first line."
    ),
    tools=[sales_of_yesterday, write_file],
    features=[Batch()],
    max_steps=6,
)


def _writes(messages: Sequence[Message]) -> Say:
    day = json.loads(last_result(messages))
    rows = [f"- {row['what']}: {row['sold']} ({row['sold'] - row['before']:+d})" for row in day["sales"]]
    report = "\n".join([f"# Sales of {day['day']}", "", *rows, ""])
    return Say(calls=[Call("write_file", {"path": f"reports/{day['day']}.md", "content": report, "mode": "overwrite"})])


night = Script("night", [Say(calls=[Call("sales_of_yesterday")]), _writes, lambda messages: Say(last_result(messages))])
