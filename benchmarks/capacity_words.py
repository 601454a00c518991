"""The prose of docs/capacity.md, around its figures."""

HEAD = """\
# Capacity

What runs cost a Temporal cluster and the workers, and which limit many open runs meet first. Generated from counts of
real runs (`uv run --group bench python -m benchmarks.capacity`); do not edit. A number is counted, or computed with the
formula beside it, or quoted with its source. Counts are the same on any machine; CPU times and memory are from one, whose
load is given."""

IN_SHORT = """\
## In short

- A step costs {actions} actions and {requests} requests, whatever its number: the first and the 10,000th.
- A run that waits costs no action and no request, however long.
- What is expensive is time in which something runs: a model that writes sends {heartbeats} heartbeats a second on a
  server of your own and {cloud_heartbeats} on Temporal Cloud, also if nobody watches.
- With [this load](#many-open-runs), the first limit that is met is the workers' memory, at 2,000 open runs with two
  processes: those that they do not have in memory are replayed when they go on. Of Temporal Cloud's limits, the first
  is {cloud}, at {cloud_at} open runs; of a server with default settings,
  {own}, at {own_at}."""

COUNTED = """\
## What is counted

- **Events and bytes** of history, as the server says them.
- **Actions**: what Temporal Cloud bills and limits ([list](https://docs.temporal.io/evaluate/cloud/actions)): the start of
  a workflow (a child is two; also the next run after continue-as-new), an activity and each of its retries, the local
  activities of a workflow task (one for all), a heartbeat that reaches the server, a timer, a signal, a query, an update, a
  change of search attributes. These are the numbers of the server's own metric `action`
  ([Temporal's page](https://docs.temporal.io/cloud/migrate/estimate-actions)). It also counts a changed memo, which the
  list does not have: one for each run, two more if it waits. On Temporal Cloud the number may be smaller by these.
- **Requests** to the server's frontend, of workers (polls too) and of `mulligan serve`.
- **Database**: requests of the server to its database that runs cause.

Temporal Cloud limits *operations* a second too; no server that one can run counts these."""

STEP = """\
## A step

A model call over HTTP and a call of a tool whose result has 1 KB, without a run's first and last requests."""

STEP_AFTER = """\
Two activities are two actions, whoever calls them; pydantic-ai's model activity sends a heartbeat as well, the agent
harness two signals for those who watch. What differs is the history: Mulligan's and the floor's step costs the same at any
length, while the rivals send the whole conversation with each model call. A tool with `@tool(local=True)` needs half of the
requests and, as its marker is billed, as many actions."""

WAIT = """\
## A day of waiting

Runs of two steps that wait between these: for a person's approval, for a callback (a deferred tool), for a point in time
(`wait_until`). The server has the search attributes of a [deployment](operating.md#temporals-ui); without them there are
four actions less. `while it waits` was counted for {seconds} s with 100 runs; a day costs the same."""

WAIT_AFTER = """\
A wait ends at its `approval_timeout` or `deferred_timeout`, if there is one: one timer, one action. A
[reminder](people.md) is a timer as well. [Background responses](background.md) and [batches](batch.md) are polled for:
those waits are not free."""

LIVE = """\
## Live text, and calls that run

While a model writes, its worker sends the text in heartbeats, and `mulligan serve` looks for it once for all who watch a
run: 12 times a second, down to once a second where many models write in a process, and on Temporal Cloud, where a
heartbeat is billed."""

LIVE_AFTER = """\
A heartbeat is a request, an action, and a write to the database. An activity that writes nothing sends one every 1.5 s, so
that a lost worker is noticed after 5 to 6 s: a tool that runs for a minute costs as many actions as twenty steps. Let long
calls wait as [deferred tools](deferred-tools.md), or in [background mode](background.md). `MULLIGAN_LIVE_TEXT_SECONDS=1`
sends text once a second on every server, and `0` never."""

OPEN = """\
## An open run, and what is there without runs

An open run is rows in Temporal's database, of the size of its history. A worker keeps the newest 1,000 in memory
(`MULLIGAN_MAX_CACHED_WORKFLOWS`); the others cost it nothing until they go on, and then a replay
([figures](benchmarks.md#runs-that-wait))."""

LOAD = """\
## Many open runs

Assumed of each open run, on a day: {steps_a_day:g} steps and {waits_a_day:g} waits; in each step a model writes for
{live_seconds:g} s, of which {watched:.0%} are watched, and calls run for {silent_seconds:g} s more without text; it
is open for {days_open:g} days; the busiest second has {peak:g} times the mean. All figures below follow from these.
For another load: `uv run --group bench python -m benchmarks.capacity --page --load {load}`.

- In the busiest second: steps = runs * steps a day / 86,400 * peak; waits alike; models that write = steps * seconds
  of writing; calls that are open = steps * seconds of writing and of silence.
- Actions, requests, database = steps * those of a step + waits * those of a wait (the mean of the three kinds,
  without the step) + seconds of silence * heartbeats + models that write * heartbeats + watchers * looks. On your
  server, text is sent and looked for the less often the more models write in a process; so the number of processes
  counts.
- Cores = steps and waits * their CPU time + waits * share of runs that no process has in memory * seconds of a replay.
- Worker processes: the larger of CPU time (a process has a core and is given half of it) and of open calls (500 a
  process); two at least, so that one may be lost. Replicas of `mulligan serve`: 1,000 watchers each, as measured on
  two cores; two at least."""

LIMITS = """\
## Which limit is met first

`times the limit`: what is needed in the busiest second, divided by the limit. 1 is all of it."""

_CONFIG = "https://github.com/temporalio/temporal/blob/main/common/dynamicconfig/constants.go"
SOURCES = {
    "limits": "[default](https://docs.temporal.io/evaluate/cloud/limits)",
    "modes": "[of one unit of capacity](https://docs.temporal.io/cloud/capacity-modes)",
    "config": f"[default]({_CONFIG})",
    "page": "above",
}
REMEDIES = {
    "cache": "it costs CPU time and nothing else; more processes, or a larger `MULLIGAN_MAX_CACHED_WORKFLOWS` where the "
    "memory is there ([what a run takes](#an-open-run-and-what-is-there-without-runs))",
    "cloud": "it grows by itself with the use of the last week; before a jump, units of capacity of 500 actions and 1,500 "
    "requests a second; then more namespaces",
    "frontends": "more frontends, `frontend.namespaceRPS`; `MULLIGAN_LIVE_TEXT_SECONDS=1`; then more namespaces",
    "history": "more history hosts and a larger database; `MULLIGAN_LIVE_TEXT_SECONDS=1`; many shards from "
    "the beginning, as their number cannot be changed",
    "queues": "`matching.numTaskqueueReadPartitions` and `…WritePartitions`; agents on several task queues. This "
    "is an upper bound: tasks of a run that a worker has in memory go to the worker's own queue",
    "workers": "`--processes`, one for each core; then more machines ([scaling](scaling.md))",
    "serve": "more replicas behind any load balancer: they share nothing",
}

THEN = """\
What has no limit by number, and what bounds it:

- **One history**: 51,200 events or 50 MB. Runs continue as new long before
  ([long-runs.md](long-runs.md#continue-as-new)).
- **Open runs**: rows of the database. Temporal's
  [shards](https://docs.temporal.io/temporal-service/temporal-server#history-shard) serve tens of thousands of runs
  each, as its docs say; a million runs are 2,000 for each of 512. `system.shardRPSWarnLimit` (50) warns of a shard
  with more requests to the database a second. Where histories are large, `MULLIGAN_EXTERNAL_STORAGE` takes payloads
  of 512 KiB and more, and `MULLIGAN_CONTENT_DIR` files and images, out of the database
  ([long-runs.md](long-runs.md#external-storage), [content.md](content.md)).
- **Lists of runs**: reads are limited apart, to 30 a second for a namespace on [Temporal
  Cloud](https://docs.temporal.io/evaluate/cloud/limits) and 10 for each frontend of [a server of your
  own](https://github.com/temporalio/temporal/blob/main/common/dynamicconfig/constants.go)
  (`frontend.namespaceRPS.visibility`): 10 a second are 100 people who load a list every 10 s.
- **A worker's memory**: 1,000 runs, whatever is open. With long conversations lower `MULLIGAN_MAX_CACHED_WORKFLOWS`.
- **Models**: what the provider allows is usually met before all of these ([limits](rate-limits.md))."""

CHECKED = """\
## Checked

`computed`: the idle worker's memory and what was counted with 100 runs, for those in memory. `measured`: by `python -m
benchmarks.waiting` ([more of it](benchmarks.md#runs-that-wait)). The dev server's memory grows less with many runs than
with the first hundred."""

METHOD = """\
## Method

- Each count has a new dev server, with the settings of `mulligan dev`, and one worker, which have served a run before. The
  server's own metrics are read 2.5 s before and after. Contenders, endpoint:
  [benchmarks.md](benchmarks.md#method).
- One count each: it is exact. Requests of a worker that do not depend on runs are left out where runs are counted.
- The bytes of a wait in the load are from [step_costs.json](../tests/live/step_costs.json), which a test keeps exact.
- Not counted: sub-agents (a run of their own, and two actions more), schedules (three actions a start)."""
