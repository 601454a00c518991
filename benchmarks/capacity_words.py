"""The prose of docs/capacity.md, around its figures."""

HEAD = """\
# Capacity

What runs cost a Temporal cluster and the workers, and which limit many open runs meet first. Generated from counts of real
runs (`uv run --group bench python -m benchmarks.capacity`); do not edit. A number is counted, computed with the formula
beside it, or quoted with its source. Counts are the same on any machine, CPU times and memory are not."""

IN_SHORT = """\
## In short

- A step costs {actions} actions and {requests} requests, the first as the 10,000th; a run that waits, none.
- Time in which something runs is expensive: a model that writes sends {heartbeats} heartbeats a second on your own server
  and {cloud_heartbeats} on Temporal Cloud, also if nobody watches.
- With [this load](#many-open-runs), the first limit is the workers' memory, at 2,000 open runs with two processes: others
  are replayed when they go on. Temporal Cloud's first limit is {cloud}, at {cloud_at} open
  runs; that of a server with default settings {own}, at {own_at}."""

COUNTED = """\
## What is counted

- **Events and bytes** of history, as the server says them.
- **Actions**: what Temporal Cloud bills and limits ([list](https://docs.temporal.io/evaluate/cloud/actions)), by the
  server's metric `action` ([Temporal's page](https://docs.temporal.io/cloud/migrate/estimate-actions)): the start of a
  workflow (a child is two; also the next run after continue-as-new), an activity and each retry, the local activities of a
  workflow task (one for all), a heartbeat, a timer, a signal, a query, an update, a change of search attributes. The metric
  also counts a changed memo: one for each run, two more if it waits.
- **Requests** to the server's frontend, of workers (polls too) and of `mulligan serve`.
- **Database**: requests of the server to its database that runs cause.

Temporal Cloud limits *operations* a second too, which no other server counts."""

STEP = """\
## A step

A model call over HTTP and a tool call whose result has 1 KB, without a run's first and last requests."""

STEP_AFTER = """\
Two activities are two actions, whoever calls them; pydantic-ai's model activity sends a heartbeat as well, the agent harness
two signals. A step of Mulligan costs the same at any length; the rivals send the whole conversation with each model call.
A tool with `@tool(local=True)` needs half of the requests and as many actions."""

WAIT = """\
## A day of waiting

Runs of two steps with a wait between them: for a person's approval, a callback (a deferred tool), or a point in time
(`wait_until`). Without a deployment's [search attributes](operating.md#temporals-ui) there are four actions less. While
they wait, 100 runs cost nothing in {seconds} s, and so nothing in a day."""

WAIT_AFTER = """\
An `approval_timeout`, a `deferred_timeout` and a [reminder](approval-rules.md#reminders) are a timer each, so an action.
[Background responses](background.md) and [batches](batch.md) are polled for, which is not free."""

LIVE = """\
## Live text, and calls that run

While a model writes, its worker sends the text in heartbeats, and `mulligan serve` looks for it, once for all who watch a
run: 12 times a second; once a second where many models write in a process, and on Temporal Cloud."""

LIVE_AFTER = """\
A heartbeat is a request, an action, and a write to the database. An activity that writes nothing sends one every 1.5 s, so
a tool that runs for a minute costs as many actions as twenty steps. Let long calls wait as
[deferred tools](deferred-tools.md), or in [background mode](background.md). `MULLIGAN_LIVE_TEXT_SECONDS=1` sends text once
a second on every server, and `0` never."""

OPEN = """\
## An open run, and what is there without runs

An open run is rows in Temporal's database, of the size of its history. A worker keeps the newest 1,000 in memory
(`MULLIGAN_MAX_CACHED_WORKFLOWS`); the others cost it nothing until they go on, and then a replay."""

LOAD = """\
## Many open runs

Assumed of each open run, on a day: {steps_a_day:g} steps and {waits_a_day:g} waits; in each step a model writes for
{live_seconds:g} s, of which {watched:.0%} are watched, and calls run for {silent_seconds:g} s more without text; it
is open for {days_open:g} days; the busiest second has {peak:g} times the mean. For another load:
`uv run --group bench python -m benchmarks.capacity --page --load {load}`.

- In the busiest second: steps = runs * steps a day / 86,400 * peak; waits alike; models that write = steps * seconds
  of writing; open calls = steps * seconds of writing and of silence.
- Actions, requests, database = steps * those of a step + waits * those of a wait (the mean of the three kinds,
  without the step) + seconds of silence * heartbeats + models that write * heartbeats + watchers * looks. On your
  server, the more models write in a process, the less often text is sent.
- Cores = steps and waits * their CPU time + waits * share of runs in no process's memory * seconds of a replay.
- Worker processes: the larger of CPU time (half a core each) and of open calls (500 each). Replicas of `mulligan serve`:
  1,000 watchers each. Two of both at least."""

LIMITS = """\
## Which limit is met first

`times`: what the busiest second needs, divided by the limit."""

_CONFIG = "https://github.com/temporalio/temporal/blob/main/common/dynamicconfig/constants.go"
SOURCES = {
    "limits": "[default](https://docs.temporal.io/evaluate/cloud/limits)",
    "modes": "[of one unit of capacity](https://docs.temporal.io/cloud/capacity-modes)",
    "config": f"[default]({_CONFIG})",
    "page": "above",
}
REMEDIES = {
    "cache": "it costs CPU time only; more processes, or a larger `MULLIGAN_MAX_CACHED_WORKFLOWS`",
    "cloud": "it grows with the use of the last week; before a jump, units of capacity (500 actions, 1,500 requests a "
    "second); more namespaces",
    "frontends": "more frontends, `frontend.namespaceRPS`; `MULLIGAN_LIVE_TEXT_SECONDS=1`; more namespaces",
    "history": "more history hosts, a larger database; `MULLIGAN_LIVE_TEXT_SECONDS=1`; many shards from the "
    "beginning: their number cannot be changed",
    "queues": "`matching.numTaskqueueReadPartitions` and `…WritePartitions`; several task queues. An upper "
    "bound: tasks of a run in a worker's memory go to its own queue",
    "workers": "`--processes`, one for each core; more machines ([scaling](scaling.md))",
    "serve": "more replicas: they share nothing",
}

THEN = """\
What has no limit by number, and what bounds it:

- **One history**: 51,200 events or 50 MB. Runs [continue as new](long-runs.md#continue-as-new) long before.
- **Open runs**: rows of the database. One of Temporal's
  [shards](https://docs.temporal.io/temporal-service/temporal-server#history-shard) serves tens of thousands of runs, as its
  docs say; a million are 2,000 for each of 512. `system.shardRPSWarnLimit` (50) warns of a shard with more requests a
  second. [External storage](long-runs.md#external-storage) takes large payloads out of the database, a
  [content storage](content.md) files and images.
- **Lists of runs**: 30 reads a second for a namespace on [Temporal
  Cloud](https://docs.temporal.io/evaluate/cloud/limits), 10 for each frontend of your own server
  (`frontend.namespaceRPS.visibility`): 10 a second are 100 people who load a list every 10 s.
- **A worker's memory**: with long conversations lower `MULLIGAN_MAX_CACHED_WORKFLOWS`.
- **Models**: what the provider allows is usually met first ([rate limits](rate-limits.md))."""

CHECKED = """\
A worker with up to 10,000 waiting runs has {least:.2f} to {most:.2f} times the memory that follows from these numbers
([measured](benchmarks.md#runs-that-wait))."""

METHOD = """\
## Method

- Each count has a new dev server and one worker, which have served a run before, as in the
  [benchmarks](benchmarks.md#method). The server's own metrics are read 2.5 s before and after.
- One count each: it is exact. Requests of a worker that do not depend on runs are left out where runs are counted.
- The bytes of a wait are from [step_costs.json](../tests/live/step_costs.json), which a test keeps exact.
- Not counted: sub-agents (a run of their own, and two actions more), schedules (three actions a start)."""
