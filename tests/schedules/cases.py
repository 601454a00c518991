"""The agents whose schedules are explored, and what clients send to each of them, at any time and in any order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from mulligan import Agent, Approvals, Call, Say, Script, ToolContext, ToolError, ToolStrategy, tool
from mulligan.tools.ask_person import ask_person

NEVER = 1_000_000


@dataclass(frozen=True)
class Sent:
    """What a client sends once, or, if it is a person's decision that came too early, again at the end."""

    kind: Literal["update", "signal", "cancel"]
    name: str = ""
    argument: Any = None
    is_repeated: bool = False


@dataclass(frozen=True)
class Case:
    """A run, and what may happen to it beside the results of its activities.

    Args:
        run_input: The run's input.
        sent: What clients send.
        losses: How many tool calls that must not be repeated may be lost with their worker.
        pairs: How often two events may arrive in one workflow task.
        repeats: How many updates clients may send again, with their ids, to a run that has continued as new.
        continues_after: After how many activations the server suggests to continue as new.
        others: How the run may end if nobody stops or cancels it.
    """

    name: str
    run_input: Mapping[str, Any]
    sent: tuple[Sent, ...] = ()
    losses: int = 0
    pairs: int = 0
    repeats: int = 0
    continues_after: int = NEVER
    others: frozenset[str] = field(default=frozenset({"completed"}))


@tool
async def pay(amount: int) -> str:
    """Pay; at most once."""
    return f"paid {amount}"


@tool(attempts=3)
def fetch(page: str) -> str:
    """Fetch a page; may be repeated."""
    return f"read {page}"


@tool(local=True)
async def look(place: str) -> str:
    """Look; a local tool."""
    return f"saw {place}"


@tool(needs_approval=True)
async def refund(order: int) -> str:
    """Refund an order, if a person approves."""
    return f"refunded {order}"


@tool(once=True)
async def book(seat: int, ctx: ToolContext) -> str:
    """Book a seat. The first call fails, so it may be repeated."""
    if ctx.call_id == "b1":
        raise ToolError("The seat is being sold.")
    return f"booked {seat}"


@tool(once=True, needs_approval=True)
async def charge(order: int) -> str:
    """Charge for an order, if a person approves."""
    return f"charged {order}"


class Verdict(BaseModel):
    """The output."""

    good: bool


def _script(name: str, *turns: Say) -> Script:
    return Script(name, turns)


helper = Agent(name="helper", model="scripted:helper", instructions="Help.", tools=[fetch])
agents = [
    helper,
    Agent(name="parallel", model="scripted:parallel", instructions="Work.", tools=[pay, fetch, look]),
    Agent(
        name="approval",
        model="scripted:approval",
        instructions="Work.",
        tools=[refund, fetch],
        features=[Approvals(timeout=3600)],
    ),
    Agent(name="question", model="scripted:question", instructions="Work.", tools=[ask_person, pay]),
    Agent(
        name="parent", model="scripted:parent", instructions="Work.", tools=[helper.as_tool(description="Helps."), pay]
    ),
    Agent(
        name="doubling",
        model="scripted:doubling",
        instructions="Work.",
        tools=[book, charge],
        features=[Approvals(timeout=3600)],
    ),
    Agent(
        name="edited", model="scripted:edited", instructions="Work.", tools=[charge], features=[Approvals(timeout=3600)]
    ),
    Agent(name="judge", model="scripted:judge", instructions="Judge.", tools=[fetch], output=ToolStrategy(Verdict)),
]
scripts = [
    _script("helper", Say(calls=[Call("fetch", {"page": "b"}, id="h1")]), Say("helped")),
    _script(
        "parallel",
        Say(calls=[Call("pay", {"amount": 1}, id="p1"), Call("fetch", {"page": "a"}, id="f1")]),
        Say(calls=[Call("look", {"place": "here"}, id="l1")]),
        Say("done"),
    ),
    _script(
        "approval",
        Say(calls=[Call("refund", {"order": 7}, id="r1"), Call("fetch", {"page": "a"}, id="f1")]),
        Say("done"),
    ),
    _script(
        "question",
        Say(calls=[Call("ask_person", {"question": "Which?"}, id="q1"), Call("pay", {"amount": 1}, id="p1")]),
        Say("done"),
    ),
    _script(
        "parent",
        Say(calls=[Call("helper", {"prompt": "Help!"}, id="s1"), Call("pay", {"amount": 1}, id="p1")]),
        Say("done"),
    ),
    _script(
        "doubling",
        Say(calls=[Call("book", {"seat": 1}, id=each) for each in ("b1", "b2", "b3")]),
        Say(
            calls=[
                *(Call("charge", {"order": 7}, id=each) for each in ("r1", "r2")),
                Call("book", {"seat": 1}, id="b4"),
            ]
        ),
        Say(calls=[Call("charge", {"order": each}, id=f"s{each}") for each in (7, 8)]),
        Say("done"),
    ),
    _script(
        "edited",
        Say(calls=[Call("charge", {"order": 7}, id="r1"), Call("charge", {"order": 8}, id="r2")]),
        Say(calls=[Call("charge", {"order": 7}, id="r3")]),
        Say("done"),
    ),
    _script(
        "judge",
        Say(calls=[Call("Verdict", {"good": "perhaps"}, id="v1"), Call("fetch", {"page": "a"}, id="f1")]),
        Say(calls=[Call("Verdict", {"good": True}, id="v2")]),
        Say(calls=[Call("Verdict", {"good": False}, id="v3")]),
    ),
]

MESSAGE = Sent("update", "send_message", {"text": "And this?", "id": "m1"})
STOP = Sent("update", "stop", {"reason": "enough"})
STOP_SIGNAL = Sent("signal", "stop", {"reason": "enough"})
CANCEL = Sent("cancel")
APPROVE = Sent("update", "decide", {"call_id": "r1", "decision": "approve"}, is_repeated=True)
EDIT = Sent("update", "decide", {"call_id": "r1", "decision": "approve", "arguments": {"order": 8}}, is_repeated=True)
DENY = Sent("update", "decide", {"call_id": "r1", "decision": "deny", "reason": "no"})
EDIT_TO_EQUAL = Sent(
    "update", "decide", {"call_id": "r2", "decision": "approve", "arguments": {"order": 7}}, is_repeated=True
)
APPROVE_LATER = Sent("update", "decide", {"call_id": "r3", "decision": "approve"}, is_repeated=True)
ANSWER = Sent("update", "answer", {"call_id": "q1", "text": "The red one."}, is_repeated=True)


def _case(name: str, agent: str, *sent: Sent, **options: Any) -> Case:
    return Case(name, {"agent": agent, "prompt": "Go."}, sent, **options)


QUICK = [
    _case("parallel tools, a lost one", "parallel", MESSAGE, losses=1),
    _case("stop", "parallel", STOP),
    _case("cancel", "parallel", CANCEL),
    _case("approval, cancelled", "approval", APPROVE, CANCEL),
    _case("approved with changes, cancelled", "approval", EDIT, CANCEL),
    _case("sub-agent, cancelled", "parent", CANCEL),
    _case("structured output", "judge", MESSAGE),
    _case("question", "question", ANSWER),
    _case("continued as new", "parallel", MESSAGE, continues_after=4),
    _case("equal calls", "doubling", APPROVE),
    _case("an update sent again to a continued run", "approval", APPROVE, continues_after=3, repeats=1),
]
FULL = [
    _case("equal calls, a lost one", "doubling", APPROVE, losses=1),
    _case("approved and message, sent again", "approval", APPROVE, MESSAGE, continues_after=3, repeats=1),
    _case("denied or approved, sent again", "approval", APPROVE, DENY, continues_after=3, repeats=2),
    _case("approved with changes, sent again", "approval", EDIT, MESSAGE, continues_after=3, repeats=2),
    _case("answered, sent again, stopped", "question", ANSWER, STOP, continues_after=3, repeats=2),
    _case("sent again, cancelled", "approval", APPROVE, CANCEL, continues_after=3, repeats=1),
    _case("sent again, two events in one task", "approval", APPROVE, continues_after=3, repeats=1, pairs=1),
    _case("parallel tools, lost, stopped", "parallel", MESSAGE, STOP, losses=1),
    _case("parallel tools, lost, cancelled", "parallel", MESSAGE, CANCEL, losses=1),
    _case("stopped and cancelled", "parallel", STOP_SIGNAL, CANCEL, losses=1),
    _case("two events in one task", "parallel", STOP, pairs=1, losses=1),
    _case("two events in one task, cancelled", "parallel", CANCEL, pairs=1),
    _case("approved, denied, stopped", "approval", APPROVE, DENY, STOP),
    _case("approved with changes, message", "approval", EDIT, MESSAGE),
    _case("approved with changes, denied, cancelled", "approval", EDIT, DENY, CANCEL),
    _case("approval, two events in one task", "approval", APPROVE, DENY, pairs=1),
    _case("question, stopped", "question", ANSWER, STOP, losses=1),
    _case("question, two events in one task", "question", ANSWER, MESSAGE, pairs=1),
    _case("sub-agent, stopped", "parent", STOP, losses=1),
    _case("sub-agent, stopped by signal and cancelled", "parent", STOP_SIGNAL, CANCEL),
    _case("sub-agent, cancelled, two events in one task", "parent", CANCEL, pairs=1),
    _case("structured output, message, stopped", "judge", MESSAGE, STOP),
    _case("structured output, cancelled, two events in one task", "judge", MESSAGE, CANCEL, pairs=1),
    _case("continued as new, message, stopped", "parallel", MESSAGE, STOP, continues_after=4),
    _case("continued as new, two events in one task", "parallel", MESSAGE, pairs=1, continues_after=4),
    _case("continued as new while it waits", "approval", APPROVE, MESSAGE, continues_after=3),
    _case("continued as new, denied or approved, stopped", "approval", APPROVE, DENY, STOP, continues_after=3),
    _case("continued as new, cancelled", "approval", EDIT, CANCEL, continues_after=3),
    _case("equal calls, approved with changes, lost, stopped", "doubling", EDIT, STOP, losses=2),
    _case("equal calls, stopped", "doubling", APPROVE, STOP),
    _case("equal calls, denied or approved", "doubling", APPROVE, DENY, losses=1),
    _case("equal calls, two events in one task", "doubling", APPROVE, pairs=1, losses=1),
    _case("equal calls, cancelled", "doubling", APPROVE, CANCEL, losses=1),
    _case("equal calls, continued as new", "doubling", APPROVE, MESSAGE, continues_after=3, losses=1),
    _case("equal calls, one edited, continued as new", "edited", EDIT_TO_EQUAL, DENY, continues_after=3),
    _case("equal calls, an edited one lost", "edited", EDIT, APPROVE_LATER, losses=1),
    _case("equal calls, continued as new, edited", "doubling", EDIT, MESSAGE, continues_after=3, losses=1),
    _case("equal calls, continued as new, edited or denied", "doubling", EDIT, DENY, continues_after=3),
    _case(
        "equal calls, edited to be equal or lost, continued as new",
        "edited",
        EDIT,
        EDIT_TO_EQUAL,
        DENY,
        APPROVE_LATER,
        continues_after=3,
        losses=1,
    ),
]
