"""What the page says around its figures."""

HEAD = """\
# Benchmarks

Printed by `make bench` from the raw numbers; do not edit. Mulligan beside other ways to run an agent on Temporal in
Python: the OpenAI Agents SDK, pydantic-ai and Strands Agents, each with its own Temporal integration, and beside a
floor, a bare workflow that nobody can be cheaper than. Figures that fall short stand here as they are. Times are of
one machine: compare them within one table only. A spread is the median, with the least and the most, of five
measurements or more; where there were fewer, it says so."""

NOISY = """\
**This machine was busy with other work while it was measured** (see the load): bytes and steps are exact, CPU time and
the ratios of pairs tell something, wall times tell little."""

GOALS = "A figure that is not in this table was not measured yet."

HISTORY = """\
What Temporal keeps of one run, as the server counts it. Each step has one tool call with a result of 1 KB. Mulligan's
run continues as new on its own; all runs of the chain are summed up, with what they hand over."""

SURVIVAL = """\
A run with the server's own limits (51,200 events, 50 MB of history, 2 MB a payload), until the model is done after
10,000 steps or the run ends otherwise. Steps are counted by the endpoint: the most results that a request held."""

SPEED = """\
One run, nothing beside it. `the floor` is two activities a step that do nothing; `with HTTP`, the first of them sends
the conversation of that step to the endpoint, encoded beforehand. Everybody who asks a model over HTTP sends the whole
conversation at each step, because the API wants it so: time over HTTP cannot be flat. `model in process` leaves HTTP
out (`scripted:`): what is left is the runtime's own. CPU time is the processes' (in ticks of 10 ms, over the run)."""

LOCAL = "Tools declared with `@tool(local=True)` run as local activities; in turn with the same tool without it."

THROUGHPUT = """\
So many runs of 20 steps started at once, one worker each; steps of all, by the time until the last has ended. Two
cores are shared by worker, server, endpoint and driver: this is about the CPU that a step costs."""

MEMORY = """\
Open runs of 100 steps in the worker's cache, each with one tool call that does not return, less the idle worker that
has served three such runs. Mulligan's includes its cache of conversations, which is bounded in bytes."""

REPLAY = """\
The SDK's Replayer on the whole history of one run (the server is told not to suggest continue-as-new): what a worker
does that takes over a run. Five times, after once to warm up. Rivals' histories hold more bytes in as many events."""

METHOD = """\
## How it is measured

- **Processes.** Temporal's dev server (in memory), the endpoint, each worker, and the driver are one process each, on
  one machine, over loopback. Each measurement has a fresh server and fresh workers, and warms them up first.
- **The server** has the settings of `mulligan dev` (`history.transferProcessorMaxPollRPS=10000`, one partition a task
  queue, eager activities), the same for all; stock settings hold a lone run to about 10 activities a second. *History*
  and *How far a run goes* are with stock settings.
- **The endpoint** speaks the Responses API and Chat Completions, has no state, and searches requests instead of parsing
  them; its CPU time is in the table. It answers at once: a real model would take seconds, and all ratios would go to 1.
- **The task**: a prompt of 1 KB, then one tool call a step, whose result is 1 KB of words, other words each step (so
  that nothing compresses as a run of one letter would).
- **In turn.** In each repeat the floor, the floor with HTTP and the contender run one after the other, on the same
  server; *many runs at once* each on a new one, as a server that holds thousands of steps takes longer for each (the
  rivals' 20 runs were measured before that, on one server with the floors of their repeats). Who begins changes. Ratios
  are of one repeat, never of medians.
- **Workers** are set up as their documentation says, with the SDK's defaults and the sandbox: Mulligan by `worker.py
  --load benchmarks.agents` with `openai:` (Responses API, streamed); the OpenAI Agents SDK by `OpenAIAgentsPlugin` and
  `activity_as_tool` (Responses API); pydantic-ai by `TemporalDurability` and `PydanticAIPlugin`, `openai:` (Responses
  API); Strands by `StrandsPlugin`, `TemporalAgent` and `activity_as_tool` (Chat Completions, streamed: its only way).
  Limits on turns are out of the way, tracing is off for all. Versions are pinned in
  [benchmarks/rivals](../benchmarks/rivals).
- **Again**: `make bench` measures what is missing, `make bench ARGS="--again --only speed"` anew, `make bench
  ARGS=--quick` a small set in minutes, `make bench ARGS=--page` prints the page. It needs Linux and no network but the
  packages."""

UNFAIR = """\
## What is unfair to whom

- *To the rivals*: the agent, its long conversation and a tool of 1 KB a step are chosen by us; histories that grow with
  the square show at many steps. A chat of five steps would show little. They do other things that are not measured here.
- *To the rivals*: the OpenAI Agents SDK and Strands can be handed over by code of the user's own between runs of the
  agent; pydantic-ai has a hook for it, which is measured as a contender of its own. Their users may also put large
  payloads into a store of their own by a codec or by external storage.
- *To Mulligan*: it also prepares, checks and records each call, opens the run in an activity and ends it in another.
  The floors do none of that.
- *To the floors*: 2,000 steps are one history of theirs, of 24,000 events, which the server takes longer with; Mulligan
  continues as new.
- *To Mulligan*: the floor with HTTP has its requests encoded beforehand, has its answers whole, and does not look at them.
- *To Strands and Mulligan*: they ask for streamed answers, Strands always and Mulligan by default; an answer is then
  some events more.
- *To all but the floor*: the model answers in no time, which no model does. A step's share of the runtime is far less
  beside a real one."""
