"""Edited arguments and the policy of their tool: random decisions of random people, against a model of who may run what."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.client import WorkflowUpdateFailedError

from mulligan import Agent, Call, CodeMode, Decide, Guarded, Pending, Say, Script, ToolCall, ToolContext, tool
from mulligan.client.converter import data_converter
from mulligan.errors import UpdateRefusedError, error_of
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from mulligan.testing import person as person_module
from mulligan.testing._activities import PAYLOADS
from mulligan.worker.sdk_workarounds.activation_messages import DoUpdate, WorkflowActivationJob
from mulligan.workflows.conversation.continue_as_new import ContinueAsNewPolicy
from tests.support.examples import examples

OWN_ROLES = ("cook", "chief")
RAISES, NOTHING = "it raises", None
REQUIREMENTS = [False, True, True, *OWN_ROLES, *OWN_ROLES, RAISES, NOTHING]
NUMBERS = range(6)
FORBIDDEN = 6
"""The guard refuses it."""
INVALID = "no number"


@dataclass(frozen=True)
class Decision:
    """One decision. `roles`: of whoever decides; None: all. `arguments`: edited ones, if there are any."""

    call: str
    roles: tuple[str, ...] | None
    decision: str = "approve"
    number: Any = None

    def update(self, by: str) -> dict[str, Any]:
        edited = {} if self.number is None else {"arguments": {"number": self.number}}
        roles = None if self.roles is None else list(self.roles)
        return {"call_id": self.call, "decision": self.decision, "roles": roles, "by": by, **edited}


@dataclass
class CallState:
    """What the model of the rules knows of a call. `own`: its model's argument. `by`: who decided; `edits`: who edited."""

    own: int
    number: int
    role: str | None = None
    outcome: str = "waits"
    by: str | None = None
    edits: list[str] = field(default_factory=list)
    is_edited: bool = False


class Rules:
    """The rules on edits, as contract §23 has them."""

    def __init__(self, policy: Sequence[Any], numbers: Sequence[int]) -> None:
        self.policy, self.calls = policy, {}
        for at, number in enumerate(numbers):
            state = self.calls[f"c{at}"] = CallState(number, number)
            needed = policy[number]
            if needed in (RAISES, NOTHING):
                state.outcome = "denied"
            elif needed is False:
                state.outcome = "runs"
            elif needed is not True:
                state.role = needed

    def decide(self, decision: Decision, by: str) -> str:
        """What is answered, and done."""
        state = self.calls[decision.call]
        if state.outcome != "waits" or not _has(decision.roles, state.role):
            return "refused"
        if decision.decision == "deny":
            state.outcome, state.by = "denied", by
            return "accepted"
        if decision.number is None:
            state.outcome, state.by = "runs", by
            return "accepted"
        if decision.number in (FORBIDDEN, INVALID):
            return "refused"
        needed = self.policy[decision.number]
        state.number, state.is_edited, state.role = decision.number, True, None
        if needed in (RAISES, NOTHING):
            state.outcome, state.by, state.edits = "denied", "policy", [*state.edits, by]
            return "denied"
        state.role = needed if isinstance(needed, str) else None
        if _has(decision.roles, state.role):
            state.outcome, state.by, state.edits = "runs", by, [*state.edits, by]
            return "accepted"
        state.edits = [*state.edits, by]
        return f"waits for {state.role}"


def _has(roles: Sequence[str] | None, role: str | None) -> bool:
    return role is None or roles is None or role in roles


class People:
    """Sends groups of decisions at once, and checks that the answers are those of the rules, in one order of the group."""

    def __init__(self, rules: Rules, groups: Sequence[tuple[Sequence[Decision], bool, bool]]) -> None:
        self.rules, self._groups, self._sent = rules, list(groups), 0
        self.is_due = False
        self.waited_on = 0

    async def reply_to(self, handle: Any) -> bool:
        await self._check_pending(handle)
        if self._groups:
            group, continues, repeats = self._groups.pop(0)
        else:
            group, continues, repeats = [Decision(self._next_waiting(), None)], False, False
        people = [f"person {self._sent + number}" for number in range(len(group))]
        self._sent += len(group)
        self.is_due = continues
        sent = [(who, each.update(who)) for who, each in zip(people, group, strict=True)]
        answers = await _send(handle, sent)
        self.is_due = False
        self._judge(group, people, answers)
        if repeats and not handle.ordered.engine.runs[handle.workflow_id].status:
            again = await _send(
                handle, [each for each, answer in zip(sent, answers, strict=True) if answer != "refused"]
            )
            assert again == [answer for answer in answers if answer != "refused"]
        return True

    def _next_waiting(self) -> str:
        return next(name for name, state in self.rules.calls.items() if state.outcome == "waits")

    async def _check_pending(self, handle: Any) -> None:
        waiting = {name: state for name, state in self.rules.calls.items() if state.outcome == "waits"}
        pending = {each["call_id"]: each for each in await handle.query("pending")}
        assert pending.keys() == waiting.keys()
        for name, state in waiting.items():
            seen = Pending.model_validate(pending[name])
            assert seen.arguments == {"number": state.number}
            assert seen.text == f'act {{"number": {state.number}}}'
            assert seen.role == state.role
            assert (seen.edits, seen.edited_by) == (len(state.edits), state.edits[-1] if state.edits else None)

    def _judge(self, group: Sequence[Decision], people: Sequence[str], answers: Sequence[str]) -> None:
        tried = []
        for order in itertools.permutations(range(len(group))):
            rules = copy.deepcopy(self.rules)
            told = {at: rules.decide(group[at], people[at]) for at in order}
            if [told[at] for at in range(len(group))] == list(answers):
                self.rules = rules
                self.waited_on += sum(answer.startswith("waits") for answer in answers)
                return
            tried.append(told)
        raise AssertionError(f"{group} was answered by {answers}, and not by one of {tried}")


async def _send(handle: Any, updates: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Send updates before any of them is answered. `updates`: pairs of their ids and their arguments."""
    numbers = []
    for update_id, argument in updates:
        while not handle.ordered.engine.runs[handle.workflow_id].is_started:  # the run has continued as new
            await handle.ordered.next()
        number = f"protocol-{handle.ordered.updates}"
        handle.ordered.updates += 1
        numbers.append(number)
        update = DoUpdate(
            id=update_id, protocol_instance_id=number, name="decide", input=PAYLOADS.to_payloads([argument]),
            run_validator=True,
        )  # fmt: skip
        await handle.ordered.deliver(handle.workflow_id, WorkflowActivationJob(do_update=update))
    while any(handle._answer(number) is None for number in numbers):
        await handle.ordered.next()
    return [_told(handle._answer(number)) for number in numbers]


def _told(answer: Any) -> str:
    if answer.HasField("rejected"):
        refused = WorkflowUpdateFailedError(data_converter.failure_converter.from_failure(answer.rejected, PAYLOADS))
        assert isinstance(error_of(refused), UpdateRefusedError)
        return "refused"
    result = PAYLOADS.from_payload(answer.completed)
    assert result["accepted"] is True
    if "denied" in result:
        return "denied"
    return f"waits for {result['role']}" if "role" in result else "accepted"


def agent_with(policy: Sequence[Any], ran: list[tuple[str, int]]) -> Agent:
    def needs(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        if policy[arguments["number"]] == RAISES:
            raise RuntimeError("cannot tell")
        return policy[arguments["number"]]

    @tool(needs_approval=needs)
    def act(number: int, ctx: ToolContext) -> str:
        """Act."""
        ran.append((ctx.call_id, number))
        return f"acted on {number}"

    def guard(call: ToolCall, ctx: ToolContext) -> str | None:
        return "not this one" if call.arguments == f'{{"number": {FORBIDDEN}}}' else None

    return Agent(name="actor", model="openai:m", tools=[act], guard=guard)


CALLS = st.lists(st.sampled_from([0, 0, *NUMBERS]), min_size=1, max_size=3)
ROLES = st.sampled_from([(), (), ("cook",), ("chief",), ("cook", "chief"), None])
SHOWN = st.sampled_from([f"c{at}" for at in range(3)])
EDITS = st.sampled_from([*NUMBERS, *NUMBERS, FORBIDDEN, INVALID])
DECISIONS = st.one_of(
    st.builds(Decision, SHOWN, ROLES),
    st.builds(Decision, SHOWN, ROLES, st.just("deny")),
    *[st.builds(Decision, SHOWN, ROLES, st.just("approve"), EDITS)] * 4,
)
EDIT_BY = st.tuples(ROLES, EDITS)
EDITS_AT_ONCE = st.builds(
    lambda call, edits: [Decision(call, roles, "approve", number) for roles, number in edits],
    SHOWN,
    st.lists(EDIT_BY, min_size=2, max_size=3),
)
GROUP = st.one_of(
    st.lists(DECISIONS, min_size=1, max_size=1), st.lists(DECISIONS, min_size=1, max_size=3), EDITS_AT_ONCE
)
GROUPS = st.lists(st.tuples(GROUP, st.booleans(), st.booleans()), min_size=1, max_size=8)
POLICIES = st.permutations(REQUIREMENTS).map(lambda others: [True, *others[: len(NUMBERS) - 1]])


async def run_decided(
    policy: Sequence[Any], numbers: Sequence[int], groups: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[AgentRun, People, list[tuple[str, int]]]:
    # Decisions on a call that there is not are on another one.
    names = {f"c{at}": f"c{at % len(numbers)}" for at in range(3)}
    groups = [([replace(each, call=names[each.call]) for each in group], *flags) for group, *flags in groups]
    people = People(Rules(policy, numbers), groups)
    ran: list[tuple[str, int]] = []
    with monkeypatch.context() as patched:
        patched.setattr(person_module, "PersonDriver", lambda _: people)
        patched.setattr(ContinueAsNewPolicy, "_has_grown", lambda self, retry_at_bytes: people.is_due)
        calls = [Call("act", {"number": number}, id=f"c{at}") for at, number in enumerate(numbers)]
        run = await run_agent(
            agent_with(policy, ran), "Go.", model=ScriptedModel(Say(calls=calls), "Done."), person=lambda _: None
        )
    return run, people, ran


def check_ended(run: AgentRun, people: People, ran: list[tuple[str, int]]) -> None:
    calls = people.rules.calls
    assert sorted(ran) == sorted((name, each.number) for name, each in calls.items() if each.outcome == "runs")
    assert run.result is not None
    assert run.result.status == "completed"
    assert run.result.recovered_failures == sum(each.outcome == "denied" for each in calls.values())
    assert run.result.repairs == 0
    assert sum(event.type == "edited" for event in run.events) == people.waited_on
    for call in run.calls:
        state = calls[call.id]
        kind = call.result.error.kind if call.result and call.result.error else None
        assert kind == ("denied" if state.outcome == "denied" else None)
        if state.by is None:  # nobody was asked
            assert call.decision is None
            continue
        assert call.arguments == {"number": state.number}
        assert call.decision is not None
        assert call.decision.decision == ("approve" if state.outcome == "runs" else "deny")
        assert (call.decision.by, call.decision.role) == (state.by, state.role)
        assert call.decision.edited is state.is_edited
        assert call.decision.before == ({"number": state.own} if state.is_edited else None)
        editor = state.edits[-1] if state.edits else None
        assert call.decision.edited_by == (None if editor == state.by else editor)


@settings(max_examples=examples(25), deadline=None)
@given(policy=POLICIES, numbers=CALLS, groups=GROUPS)
async def test_a_call_runs_only_with_arguments_that_were_approved_as_their_policy_wants(
    policy: list[Any], numbers: list[int], groups: Any
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        check_ended(*await run_decided(policy, numbers, groups, monkeypatch))


RAN: list[int] = []


def of_large(arguments: dict[str, Any], ctx: ToolContext) -> Any:
    """Somebody for all, the chief for more than 10."""
    return "chief" if arguments.get("number", len(arguments.get("prompt", ""))) > 10 else True


def spend(number: int) -> str:
    """Spend."""
    RAN.append(number)
    return f"spent {number}"


def speak(messages: Any) -> Say:
    RAN.append(len(messages[-1].text))
    return Say(f"spent {len(messages[-1].text)}")


MODEL = "openai:m"
SPENDS = tool(needs_approval=of_large)(spend)
HELPER = Agent(name="helper", model="scripted:helper")
SPENDER = Agent(name="spender", model="scripted:spender", tools=[SPENDS])


@tool(trust="untrusted")
def read() -> str:
    """Read."""
    return "others wrote this"


SPEND = Call("spend", {"number": 5}, id="s")
KINDS: dict[str, tuple[Agent, list[Say | str], list[Script]]] = {
    "a tool": (Agent(name="a", model=MODEL, tools=[SPENDS]), [Say(calls=[SPEND])], []),
    "a tool with once": (
        Agent(name="a", model=MODEL, tools=[tool(once=True, needs_approval=of_large)(spend)]),
        # The second call equals the edited one: it is not run again.
        [Say(calls=[SPEND]), Say(calls=[Call("spend", {"number": 50})])],
        [],
    ),
    "a tool of a script": (
        Agent(name="a", model=MODEL, tools=[SPENDS], features=[CodeMode()]),
        [Say(calls=[Call("run_code", {"code": "await spend(number=5)"})])],
        [],
    ),
    "a sub-agent": (
        Agent(name="a", model=MODEL, tools=[HELPER.as_tool(name="spend", description="Spend.", needs_approval=of_large)]),
        [Say(calls=[Call("spend", {"prompt": "12345"}, id="s")])],
        [Script("helper", [speak])],
    ),
    "a tool of a sub-agent": (
        Agent(name="a", model=MODEL, tools=[SPENDER.as_tool(description="Spends.")]),
        [Say(calls=[Call("spender", {"prompt": "Spend."})])],
        [Script("spender", [Say(calls=[SPEND]), Say("Done.")])],
    ),
    "a consequential tool after untrusted results": (
        Agent(
            name="a",
            model=MODEL,
            tools=[read, tool(consequential=True, needs_approval=lambda arguments, ctx: arguments["number"] > 10 and "chief")(spend)],
            features=[Guarded()],
        ),
        [Say(calls=[Call("read")]), Say(calls=[SPEND])],
        [],
    ),
    "an isolated tool": (
        Agent(name="a", model=MODEL, tools=[tool(isolated=True, needs_approval=of_large)(spend)]),
        [Say(calls=[SPEND])],
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_call_is_asked_again(kind: str) -> None:
    """The edit waits on for the role; another edit, by who has it, is its approval; and both are told in the step."""
    agent, turns, scripts = KINDS[kind]
    asked: list[Pending] = []
    RAN.clear()

    def person(wait: Pending) -> Decide:
        asked.append(wait)
        number, roles, who = {1: (20, [], "Bob"), 2: (50, ["chief"], "Ada")}[len(asked)]
        edited = {"prompt": "x" * number} if "prompt" in wait.arguments else {"number": number}
        return Decide(call_id=wait.call_id, decision="approve", arguments=edited, roles=roles, by=who)

    run = await run_agent(agent, "Go.", model=ScriptedModel(*turns, "Done."), scripts=scripts, person=person)
    assert run.result is not None
    assert run.result.status == "completed"
    assert [(each.role, each.edits, each.edited_by) for each in asked] == [(None, 0, None), ("chief", 1, "Bob")]
    assert asked[0].since == asked[1].since
    assert [len(each.untrusted) for each in asked] == [int("untrusted" in kind)] * 2
    assert ([] if "isolated" in kind else [50]) == RAN
    texts = str([message.text for message in run.messages]) if "of a sub-agent" not in kind else "spent 50"
    assert "spent 50" in texts
    assert "spent 5'" not in texts
