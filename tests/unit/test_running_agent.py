"""An agent inside its workflow: what its queries and updates answer, what its requests have, and in which order features act.

Each case runs in a workflow, without a server, and returns what it has seen as JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload

from mulligan import Agent, Call, DurableAgent, Say, Script, ToolCall, tool
from mulligan.errors import UpdateRefusedError
from mulligan.run_input import RunInput
from mulligan.testing import run_workflow
from mulligan.values import UserMessage
from mulligan.wire.agent_facts import ToolFacts
from mulligan.wire.agent_version import AgentVersion
from mulligan.wire.model_call import CALL_MODEL, PreparedCall
from mulligan.wire.run_context import TRACE_HEADER
from mulligan.wire.start_input import Carried, InheritedLabels, Origin, StartInput
from mulligan.wire.updates import SendMessage, Stop
from mulligan.workflows import limits, open_turn
from mulligan.workflows.agent_progress import task_in_one_line
from mulligan.workflows.approvals.approvals import Approvals
from mulligan.workflows.conversation.records import CallRecord, EarlierPart
from mulligan.workflows.current_details import current_details
from mulligan.workflows.feature import Feature
from mulligan.workflows.fork_point import fork_state, resume_state
from mulligan.workflows.once.once import Once
from mulligan.workflows.people.decision_handlers import DecisionHandlers
from mulligan.workflows.people.person_wait import PersonWait
from mulligan.workflows.rules.rules import Rules
from mulligan.workflows.running_agent import RunningAgent
from mulligan.workflows.scheduling import SCHEDULES
from mulligan.workflows.shown_wait import ModelWait, RunningCall, WorkerWait
from mulligan.workflows.workflow_agents import WorkflowAgents
from tests.support.core_parts import TRACE, agent_facts, step_call, tool_call
from tests.support.core_parts import open_turn as open_turn_of

Case = Callable[[], Awaitable[Any]]


@tool(once=True)
def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


own = Agent(name="own", model="scripted:own", tools=[look], max_steps=7)
other = Agent(name="other", model="scripted:own")
SCRIPT = Script("own", [Say("First.", calls=[Call("look", {"n": 1})]), Say("Second."), Say("Third.")])


@workflow.defn
class Inside:
    """Runs the case with a name."""

    @workflow.run
    async def run(self, name: str) -> Any:
        case: Case = globals()[name]
        return await case()


async def seen_by(case: Case) -> Any:
    return await run_workflow(Inside, case.__name__, agents=[own, other], models=[SCRIPT])


def inner(agent: DurableAgent[Any]) -> RunningAgent:
    return agent._agent


def person(call_id: str, **fields: Any) -> PersonWait:
    given = {"reason": "approval", "text": "pay {}", "step": 1, "index": 0, "arguments": {}, **fields}
    return PersonWait(key=call_id, call=tool_call(call_id=call_id), **given)


def refusal(check: Callable[..., Any], *arguments: Any) -> str | None:
    """Why an update is refused; None: it is not."""
    try:
        check(*arguments)
    except UpdateRefusedError as error:
        return error.message
    return None


async def before_and_after_turns() -> Any:
    agents = WorkflowAgents.of_this_workflow()
    none = agents.queries.progress(), agents.queries.messages(), agents.queries.steps(), agents.queries.events()
    first, second = DurableAgent[Any]("own"), DurableAgent[Any]("other")
    unbegun = agents.queries.progress()
    await first.run("Go.", max_steps=3)
    one = agents.queries.progress()
    await second.run("Go on.")
    both, named = agents.queries.progress(), agents.queries.progress("0")
    return [
        [none[0], none[1]["total"], none[2]["total"], none[3]["total"]],
        [unbegun["status"], unbegun["step"], unbegun["max_steps"], unbegun["waiting_for"]],
        [one["status"], one["step"], one["max_steps"], one["tool_calls"], one.get("all_turns")],
        [each["status"] for each in one["conversations"]],
        [both["step"], both["all_turns"]["usage"] == (inner(first).used[0] + inner(second).used[0]).usage.model_dump()],
        [
            named["step"],
            agents.queries.messages(conversation="1")["total"],
            [m["role"] for m in agents.queries.messages()["messages"]],
        ],
        [len(agents.queries.steps()["steps"]), agents.queries.events()["events"][0]["type"]],
        [agents.queries._key_of("own"), agents.queries._key_of("0"), agents.queries._key_of("nobody")],
    ]


async def test_the_queries_answer_for_the_agent_that_works_or_that_worked_last() -> None:
    none, unbegun, one, statuses, both, named, defaults, keys = await seen_by(before_and_after_turns)
    assert none == [{"status": "failed"}, 0, 0, 0]
    assert unbegun == ["running", 0, 0, None]
    assert one == ["completed", 2, 3, 1, None]
    assert statuses == ["completed", "not_started"]
    assert both == [2, True]  # the script of both begins with a call
    assert (named, defaults) == ([2, 4, ["user", "assistant", "tool", "assistant"]], [2, "run_started"])
    assert keys == ["0", "0", "nobody"]


async def what_is_waited_for() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    await agent.begin(RunInput(agent="own", prompt="Do it.\nNow.", max_steps=5))
    queries = WorkflowAgents.of_this_workflow().queries
    seen = [queries.progress()["status"], task_in_one_line(this)]
    call, record = ToolCall(id="a", name="look", arguments="{}"), CallRecord()
    hidden = RunningCall(key="b", call=call, record=record, is_hidden=True)
    with this.waits.entered(person("p")):
        seen += [queries.progress()["status"], queries.progress()["waiting_for"]["kind"]]
        with this.waits.entered(RunningCall(key="a", call=call, record=record)), this.waits.entered(hidden):
            progress = queries.progress()
            seen += [progress["status"], progress["running"], progress["waiting_for"]["kind"]]
        this.status = "completed"
        seen += [queries.progress()["status"], queries.progress()["waiting_for"]]
        this.status = "running"
    with this.waits.entered(ModelWait(key="", model="m", step=1, patience=1)):
        seen.append(agent.status)
    with this.waits.entered(WorkerWait(key="", agent="own", opens=True)):
        this.input = StartInput(agent="own", prompt="Next.")
        seen.append(task_in_one_line(this))
    return seen


async def test_an_open_turn_waits_if_only_people_can_go_on_with_it() -> None:
    assert await seen_by(what_is_waited_for) == [
        "running", "Do it.", "waiting", "person", "running", ["look"], "tool", "completed", None, "running", "Next.",
    ]  # fmt: skip


async def which_messages_are_accepted() -> Any:
    handlers = WorkflowAgents.of_this_workflow().handlers
    first = inner(DurableAgent[Any]("own"))
    check, stop = handlers._check_message, handlers._check_stop
    seen = [refusal(check, {"text": "Hi."}), refusal(check, {"text": "x" * 1_000_001}), refusal(check, {"txt": "Hi."})]
    seen += [refusal(check, {"text": "Hi.", "conversation": "4"}), refusal(stop, {})]
    first.inbox.is_idle = True
    seen.append(refusal(stop, {}))
    first.inbox.is_idle, first.inbox.is_closed = False, True
    seen += [refusal(stop, {}), refusal(check, {"text": "Hi."})]
    second = inner(DurableAgent[Any]("other"))
    seen += [refusal(check, {"text": "Hi."}), refusal(check, {"text": "Hi.", "conversation": "1"}), refusal(stop, {})]
    await handlers.stop({"reason": "late"})
    stopped = [each.inbox.stop is not None for each in (first, second)]
    handlers.stop_by_signal({"reason": 5}, "more")
    handlers.stop_by_signal()
    return [seen, stopped, second.inbox.stop and second.inbox.stop.reason]


async def test_an_update_is_refused_where_nobody_would_take_it() -> None:
    """One without the number of an agent is for the only one; a stop is for all of them."""
    seen, stopped, reason = await seen_by(which_messages_are_accepted)
    assert seen == [
        None,
        '"text" has 1,000,001 bytes; at most 1,000,000 are accepted.',
        '"txt" is not a known field; known are "conversation", "text", "id", "content".',
        'There is no conversation "4"; there are: 0.',
        None,
        "Nothing is running that could be stopped.",
        "Nothing is running that could be stopped.",
        "The run is ending, so the message was not accepted. Start another run, or resume this one.",
        'The workflow has several agents; name one as "conversation": "0" (own), "1" (other).',
        None,
        None,
    ]
    assert (stopped, reason) == ([True, True], "late")


async def stopped_while_idle() -> Any:
    handlers = WorkflowAgents.of_this_workflow().handlers
    first, second = inner(DurableAgent[Any]("own")), inner(DurableAgent[Any]("other"))
    first.inbox.is_idle = True
    await handlers.stop({})
    handlers.stop_by_signal("no object")
    return [first.inbox.stop, second.inbox.stop is not None]


async def test_a_stop_by_a_signal_reaches_all_agents_whatever_it_says() -> None:
    """One by an update only those that work: it could be for the next turn otherwise."""
    first, second = await seen_by(stopped_while_idle)
    assert (first is not None, second) == (True, True)


async def who_may_decide() -> Any:
    agents = WorkflowAgents.of_this_workflow()
    decisions = DecisionHandlers(agents)
    first, second = inner(DurableAgent[Any]("own")), inner(DurableAgent[Any]("other"))
    find, seen = decisions._find_pending, []
    with first.waits.entered(person("a")), first.waits.entered(person("q", reason="question")):
        seen += [
            find("a", None, "approval")[0],
            refusal(find, "a", None, "question"),
            refusal(find, "q", None, "approval"),
        ]
        seen += [refusal(find, "b", None, "approval"), refusal(find, "a", "1", "approval")]
        with second.waits.entered(person("a")):
            seen += [refusal(find, "a", None, "approval"), find("a", "1", "approval")[0]]
    done = person("d")
    done.resolve("deny", by="Ada")
    with second.waits.entered(done):
        seen.append(refusal(find, "d", None, "approval"))
    second.waits.remember(done, "it was denied by Ada")
    seen.append(refusal(find, "d", None, "approval"))
    return seen


async def test_a_decision_is_for_one_call_that_waits_for_that_kind_of_reply() -> None:
    seen = await seen_by(who_may_decide)
    assert seen[0] == "0"
    assert seen[1] == '"a" waits for approval; use the update "decide".'
    assert seen[2] == '"q" waits for an answer; use the update "answer".'
    assert '"b"' in seen[3]
    assert '"a"' in seen[4]
    assert seen[5] == 'Calls of several agents have the id "a"; name one as "conversation".'
    assert seen[6] == "1"
    assert '"d"' in seen[7]
    assert "it was denied by Ada" in seen[8]


async def pending_calls() -> Any:
    handlers = WorkflowAgents.of_this_workflow().handlers
    first, second = inner(DurableAgent[Any]("own")), inner(DurableAgent[Any]("other"))
    done = person("d")
    done.resolve("approve")
    late, early = person("late", since=20.0), person("early", since=10.0)
    with first.waits.entered(late), second.waits.entered(early), first.waits.entered(done):
        both = [[each["call_id"], each["agent"], each.get("conversation")] for each in handlers.pending()]
        return [both, [each["call_id"] for each in handlers.pending("0")], handlers.pending("7")]


async def test_the_call_that_has_waited_longest_stands_first() -> None:
    """One with a decision does not wait."""
    both, first, none = await seen_by(pending_calls)
    assert [each[:2] for each in both] == [["early", "other"], ["late", "own"]]
    assert (first, none) == (["late"], [])


async def requests_of_a_turn() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    carried = Carried(
        origin=Origin(kind="resume", workflow_id="w", run_id="r"),
        labels=InheritedLabels(cache_key="k", safety_identifier="s"),
    )
    given = {"tenant": "t", "user": "u", "metadata": {"a": "b"}, "client_metadata": {"c": "d"}, "carried": carried}
    await agent.begin(StartInput(agent="own", prompt="Go.", **given))
    where = this.context
    seen: list[Any] = [where.agent, where.conversation, where.tenant, where.user, where.client_metadata]
    assert where.labels is not None
    seen += [where.labels.cache_key, where.labels.safety_identifier, where.version, where.input is None]
    facts = ToolFacts(timeout=1, feature="skills")
    call = step_call(tool_call(arguments='{"a": 1}'), facts, arguments={"a": 1})
    call.record.repairs, call.after_untrusted = (), True
    request = this.call_request(call)
    seen += [request.call.arguments, request.arguments, request.metadata, request.in_script, request.after_untrusted]
    call.of = 0
    seen += [this.call_request(call).in_script, request.digest == call.digest, request.pinned]
    this.turn.facts = this.facts.model_copy(
        update={"tools_by_function": True, "version": AgentVersion(digest="v", created="c", agent="own")}
    )
    seen += [this.context.version, this.context.input is not None, this.context.input.messages]  # type: ignore[union-attr]
    return seen


async def test_the_input_of_an_activity_says_whose_run_it_is_of() -> None:
    seen = await seen_by(requests_of_a_turn)
    assert seen[:9] == ["own", "0", "t", "u", {"c": "d"}, "k", "s", None, True]
    assert seen[9:14] == ["", {"a": 1}, {"a": "b"}, False, True]
    assert seen[14:17] == [True, True, {}]


async def schedules_of_models() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    await agent.begin(RunInput(agent="own", prompt="Go."))
    row = this.model_schedule(SCHEDULES[CALL_MODEL])
    assert row.timeout is not None
    own_timeout = this.facts.model_timeout
    seen = [row.queue, row.suffix, row.timeout.total_seconds() - own_timeout, row.has_heartbeat]
    this.turn.facts = this.facts.model_copy(update={"model_task_queue": "models"})
    row = this.model_schedule(SCHEDULES[CALL_MODEL], waits=False)
    return [*seen, row.queue, row.suffix, row.waits]


async def test_model_calls_with_limits_of_their_own_have_their_own_queue() -> None:
    assert await seen_by(schedules_of_models) == [None, "", 120.0, True, "models", "-models", False]


class Outer(Feature):
    """Notes when it is called."""

    async def answer(self, call: Any, then: Any) -> Any:
        return ["outer", *await then(call)]


class Inner(Feature):
    async def answer(self, call: Any, then: Any) -> Any:
        return ["inner", *await then(call)]


class Unused(Outer):
    @classmethod
    def is_used(cls, turn: Any) -> bool:
        return False


async def around_a_model_call() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    await agent.begin(RunInput(agent="own", prompt="Go."))
    this.features = [Outer(this), Unused(this), Inner(this), Rules(this)]
    this._link_features(this.turn)

    async def call(argument: Any) -> Any:
        return [argument]

    wrapped = await this.around("answer", call)("call")
    with_method = [type(each).__name__ for each in this.with_method("answer")]
    return [wrapped, with_method, [type(each).__name__ for each in this.linked("answer")], [*this.linked("settled")]]


async def test_the_first_feature_stands_around_the_others() -> None:
    """Those that the turn does not use, or without the method, are left out."""
    wrapped, with_method, linked, settled = await seen_by(around_a_model_call)
    assert wrapped == ["outer", "inner", "call"]
    assert with_method == ["Outer", "Unused", "Inner"]
    assert (linked, settled) == (["Outer", "Inner"], [])


async def used_features() -> Any:
    agent, plain = DurableAgent[Any]("own"), DurableAgent[Any]("other")
    await agent.begin(RunInput(agent="own", prompt="Go."))
    await plain.begin(RunInput(agent="other", prompt="Go."))
    return [
        [inner(each).feature(kind) in inner(each)._used for each in (agent, plain) for kind in (Once, Rules)],
        inner(agent).pinned(inner(agent).feature(Rules), SendMessage),
    ]


async def test_a_step_asks_nothing_of_features_that_its_agent_does_not_use() -> None:
    """`own` has a tool with `once`; nobody is asked about a call of either."""
    assert await seen_by(used_features) == [[True, False, False, False], None]


async def places_of_a_fork() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    seen: list[Any] = [fork_state(this, None, 0), resume_state(this, 0)]
    await agent.run("Go.", max_steps=1)
    await agent.run([UserMessage(role="user", text="One."), UserMessage(role="user", text="Two.")])
    for step in (1, 2, None):
        state = fork_state(this, step, 0)
        assert state is not None
        assert state.fork is not None
        texts = [getattr(each, "text", "") for each in state.messages]
        seen.append([state.step, state.fork.steps, texts, state.fork.conversation["request_span"], state.fork.model])
        seen[-1].append(state.trace == this.turn_of(step or 2).trace)
    cut = fork_state(this, 2, 2)
    assert cut is not None
    seen.append([each.role for each in cut.messages])
    resumed = resume_state(this, -3)
    assert resumed is not None
    seen.append([[each.role for each in resumed.messages], resumed.next, resumed.input.prompt])
    return seen


async def test_a_fork_has_what_the_model_was_sent_at_its_step() -> None:
    seen = await seen_by(places_of_a_fork)
    assert seen[:2] == [None, None]
    assert seen[2] == [1, 0, ["Go."], [0, 1], "scripted:own", True]
    assert seen[3] == [2, 0, ["Go.", "First.", "saw 1", "One.", "Two."], [3, 5], "scripted:own", True]
    assert seen[4] == seen[3]
    assert seen[5] == ["tool", "user", "user"]
    assert seen[6] == [["user", "assistant", "tool", "user", "user", "assistant"], None, None]


async def pages_of_a_fork() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    await agent.run([UserMessage(role="user", text="x" * limits.PAGE_BYTES), UserMessage(role="user", text="y")])
    first, second = fork_state(this, 1, 0), fork_state(this, 1, 1)
    pages = resume_state(this, 0), resume_state(this, 1)
    return [[len(each.messages), each.next, each.fork is not None] for each in (first, second) if each] + [
        [len(each.messages), each.next] for each in pages if each
    ]


async def test_what_another_run_needs_comes_in_pages() -> None:
    """The last one has the state."""
    assert await seen_by(pages_of_a_fork) == [[1, 1, False], [1, None, True], [1, 1], [4, None]]


async def carried_agent() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    first = await agent.run("Go.", max_steps=1)
    await agent.begin(RunInput(agent="own", prompt="Go on.", tenant="t"))
    this.inbox.add_message(SendMessage(text="Hi."), "1")
    this.inbox.request_stop(Stop(reason="late"))
    again = inner(DurableAgent[Any](state=agent.carry()))
    turns = [again.turn.number, again.turn_of(1).number, again.turn_of(2).number]
    return [
        [again.name, again.status, again.is_answering, again.has_turn, again.is_turn_open, again.is_stopped],
        [len(again.conversation.messages), again.cached_messages == again.conversation.count_at_answer],
        [[each.text for each in again.inbox.new_messages()], again.inbox.stop and again.inbox.stop.reason],
        [again.turn.input.tenant, again.turn.input.prompt, *turns],
        [each.usage.total_tokens == first.usage.total_tokens for each in again.used],
        again.open_step,
    ]


async def test_a_carried_agent_is_where_it_was() -> None:
    assert await seen_by(carried_agent) == [
        ["own", "running", False, True, True, True],
        [4, True],
        [["Hi."], "late"],
        ["t", None, 2, 1, 2],
        [True, False],
        None,
    ]


async def open_threads() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    await agent.begin(RunInput(agent="own", prompt="Go."))
    seen = [this._open_threads()]
    await agent._call_model()
    seen.append(this._open_threads())
    this.conversation.add_inner_call(0, tool_call(call_id="i"), PreparedCall(arguments={}))
    seen.append(this._open_threads())
    return [*seen, this.is_small_enough(), this.is_due(), this._is_due_while_waiting()]


async def test_each_call_without_a_result_is_a_thread_of_the_agent() -> None:
    """Also those that calls make; between two steps it is the loop alone."""
    assert await seen_by(open_threads) == [1, 1, 2, True, False, False]


async def earlier_places() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    await agent.run("Go.")
    this.conversation.view_from = 2
    seen = [fork_state(this, 1, 0)]
    origin = Origin(kind="fork", workflow_id="w", run_id="r", conversation="3", step=2)
    this.turn.input = this.turn.input.with_fields(origin=origin)
    seen.append(fork_state(this, 1, 0))
    this.conversation.earlier = EarlierPart(messages=9, steps=1, run_id="before")
    seen.append(fork_state(this, 1, 0))
    return [[each.earlier, each.fork, each.step] for each in seen if each]


async def test_a_step_that_only_another_run_knows_is_asked_there() -> None:
    """The run before it in its chain, or the one that it was forked from."""
    assert await seen_by(earlier_places) == [
        [None, None, 1],
        [{"id": "w", "run_id": "r", "conversation": "3"}, None, 1],
        [{"run_id": "before"}, None, 1],
    ]


async def inputs_of_opening() -> Any:
    this = inner(DurableAgent[Any]("own"))
    run_input = StartInput(agent="own", prompt="x" * 100, metadata={"k": "v"}, traceparent=TRACE)
    this.conversation.append_request(run_input.new_messages)
    seen = []
    for longest, inline in ((1_000, 1_000), (10, 1_000), (1_000, 10)):
        vars(open_turn)["LONGEST_MESSAGE"], limits.INLINE_BYTES = longest, inline
        request = open_turn._request(this, run_input, 2, 0)
        long = request.longest_message
        seen.append([request.input is None, long is not None and long > 100, request.parent == TRACE, request.turn])
    later = open_turn._request(this, run_input, 2, 1)
    return [*seen, [later.longest_message, later.call_id]]


async def test_an_input_that_is_large_is_not_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what only external storage can hold is told; messages of former turns do not count."""
    monkeypatch.setattr(open_turn, "LONGEST_MESSAGE", 1)
    monkeypatch.setattr(limits, "INLINE_BYTES", 1)
    assert await seen_by(inputs_of_opening) == [
        [False, False, True, 2], [False, True, True, 2], [True, False, True, 2], [None, None],
    ]  # fmt: skip


async def details_of_agents() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    agents = {f"{n}": this for n in range(12)} | {"unbegun": inner(DurableAgent[Any]("other"))}
    pending = [{"call_id": f"c{n}", "text": "pay ``` 5\n"} for n in range(7)] + [
        {"call_id": "d", "text": "", "conversation": "1"}
    ]
    before = current_details(agents, pending)
    await agent.begin(RunInput(agent="own", prompt="Do `this`.", max_steps=5))
    this.turn.result.tool_calls, this.turn.result.cost = 1, 0.25
    plain = current_details({"0": this}, pending)
    with this.waits.entered(person("p")):
        waiting = current_details({"0": this}, pending)
    return [
        before,
        plain,
        waiting,
        current_details(agents, pending).partition("2 more")[2],
        current_details({**agents, "x": this}, []).count("---"),
    ]


async def test_the_details_say_what_each_agent_does_in_texts_that_are_no_markdown() -> None:
    """Ten agents at most, and five of the calls that wait."""
    before, plain, waiting, more, separators = await seen_by(details_of_agents)
    assert before == ""
    assert plain.split("\n\n") == [
        "**Agent** `own` · step 0 of 5 · running",
        "**Task** `Do 'this'.`",
        "**Usage** 0 input and 0 output tokens · 0.2500 USD · 1 tool call · 0 recovered failures",
    ]
    lines = waiting.split("```")[1].strip().splitlines()
    assert lines[0].startswith("waiting for approval of `pay` since")
    assert lines[1:] == [f"c{n}: pay ''' 5" for n in range(5)]
    assert (more, separators) == (" agents", 10)


async def replies_to_calls() -> Any:
    agents = WorkflowAgents.of_this_workflow()
    decisions, agent = DecisionHandlers(agents), DurableAgent[Any]("own")
    this = inner(agent)
    await agent.begin(RunInput(agent="own", prompt="Go."))
    question, approval, denied = person("q", reason="question"), person("a"), person("d")
    with this.waits.entered(question), this.waits.entered(approval), this.waits.entered(denied):
        check = decisions._check_decision
        seen: list[Any] = [
            refusal(check, {"call_id": "a", "decision": "approve"}),
            refusal(check, {"call_id": "a", "decision": "deny", "arguments": {}}),
            refusal(check, {"call_id": "a", "decision": "approve", "arguments": {"x": "y" * 1_000_001}}),
            refusal(decisions._check_answer, {"call_id": "q", "text": "x" * 1_000_001}),
            refusal(decisions._check_answer, {"call_id": "q", "text": "x" * 200_000}),
        ]
        agents.handlers.is_ready = False  # a continued run does not know yet which calls wait
        seen += [
            refusal(check, {"call_id": "z", "decision": "deny"}),
            refusal(decisions._check_answer, {"call_id": "z", "text": "x"}),
        ]
        agents.handlers.is_ready = True
        seen.append(await decisions.answer({"call_id": "q", "text": "Tuesday.", "by": "Ada"}))
        seen.append(await decisions.decide({"call_id": "a", "decision": "approve", "by": "Bo"}))
        seen.append(await decisions.decide({"call_id": "d", "decision": "deny", "by": "Bo", "reason": "no"}))
    decided = [each.decision for each in (question, approval, denied)]
    return [seen, question.answer, [[each.decision, each.by, each.reason] for each in decided if each]]


async def test_a_reply_ends_the_wait_and_is_confirmed() -> None:
    seen, answer, decided = await seen_by(replies_to_calls)
    assert seen[0] is None
    assert seen[1] == '"arguments" is allowed with "approve" only; a call that is denied does not run.'
    assert seen[2].startswith('"arguments" has 1,000,0')
    assert seen[3] == '"text" has 1,000,001 bytes; at most 1,000,000 are accepted.'
    assert seen[4:7] == [None, None, None]
    assert seen[7:] == [{"accepted": True, "call_id": each} for each in "qad"]
    assert answer == "Tuesday."
    assert decided == [["answer", "Ada", None], ["approve", "Bo", None], ["deny", "Bo", "no"]]


async def ended_handlers() -> Any:
    handlers = WorkflowAgents.of_this_workflow().handlers
    this = inner(DurableAgent[Any]("own"))
    seen: list[str] = []

    async def wait(name: str) -> None:
        try:
            with handlers.until_end():
                await asyncio.sleep(1_000)
        except UpdateRefusedError as error:
            seen.append(f"{name}: {error.message}")
        except asyncio.CancelledError:
            seen.append(f"{name}: cancelled")

    first = asyncio.create_task(wait("first"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(wait("second"))
    await asyncio.sleep(0)
    await handlers.end()
    await asyncio.wait([second])
    try:
        with handlers.until_end():
            raise KeyError("other")
    except KeyError:
        seen.append("another error stays")
    return [seen, this.inbox.is_closed, len(handlers._waiting)]


async def test_what_an_update_still_waits_for_is_refused_when_the_run_ends() -> None:
    """A cancellation of its own stays one."""
    seen, is_closed, waiting = await seen_by(ended_handlers)
    assert seen[0] == "first: cancelled"
    assert seen[1].startswith("second: ")
    assert "cancelled" not in seen[1]
    assert (seen[2:], is_closed, waiting) == (["another error stays"], True, 0)


async def fork_within_a_turn() -> Any:
    agent = DurableAgent[Any]("own")
    this = inner(agent)
    await agent.run("Go.")
    this.conversation.steps[1].agent = "former"
    states = [fork_state(this, step, 0) for step in (1, 2, None)]
    return [[each.fork.steps, each.input.agent, each.fork.facts is None] for each in states if each and each.fork]


async def test_a_fork_within_a_turn_has_its_steps_and_the_agent_that_answered_then() -> None:
    """The facts of an agent that had the conversation only before are resolved again."""
    assert await seen_by(fork_within_a_turn) == [[0, "own", False], [1, "former", True], [1, "former", True]]


@pytest.mark.parametrize(
    ("data", "parent"),
    [
        (f'{{"traceparent": "{TRACE}"}}', TRACE),
        ('{"traceparent": "no"}', None),
        ('{"traceparent": 5}', None),
        ('{"traceparent": null}', None),
        ("{}", None),
        ("[]", None),
        ("no JSON", None),
        (None, None),
    ],
)
def test_a_trace_that_a_client_sends_is_taken_over_if_it_is_one(data: str | None, parent: str | None) -> None:
    headers = {} if data is None else {TRACE_HEADER: Payload(data=data.encode())}
    assert open_turn._traceparent_in(headers) == parent


@pytest.mark.parametrize(
    ("facts", "is_used"),
    [
        ({}, False),
        ({"guarded": True}, True),
        ({"tools": {"a": ToolFacts(timeout=1), "b": ToolFacts(timeout=1, asks=True)}}, True),
        ({"tools": {"a": ToolFacts(timeout=1)}}, False),
    ],
)
def test_a_turn_whose_calls_may_wait_for_people_uses_approvals(facts: dict[str, Any], is_used: bool) -> None:
    turn = open_turn_of(agent_facts(**facts))
    assert Approvals.is_used(turn) is is_used
    assert Rules.is_used(turn) is is_used
