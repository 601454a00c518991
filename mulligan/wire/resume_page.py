"""The query for the state of a run with which another run continues its conversation, or begins before one of its steps."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from mulligan.schema.optional_field import optional_field
from mulligan.values import Message
from mulligan.wire.agent_facts import AgentFacts
from mulligan.wire.start_input import StartInput

RESUME_STATE_QUERY = "mulligan_resume_state"
"""The query: `since`, a message's number, counted from 0 in the conversation that the model got last; `at`, the number of a
step, for the conversation before its model call, 0 for the newest step, None for that of a run which is resumed; and
`conversation`, the key or the name of an agent."""


class ForkState(BaseModel):
    """What a run has recorded of the messages before the model call of `step`, for another run that begins there.

    `conversation`: in the form of `Conversation.dump`, without the messages. `key`: of the agent in its workflow. `steps`:
    how many of the steps before belong to its turn. `model`: that answered in `step`, or would be called. `cache_key`: for
    prompt caches. `features`: by their names, what their `load` gets. `edited`: what it gets instead where results of a tool
    that the feature adds were edited; not there: nothing. `facts`: of the turn; None where it was not opened.
    """

    step: int
    conversation: dict[str, JsonValue]
    key: str
    steps: int
    model: str
    cache_key: str = ""
    features: dict[str, JsonValue] = optional_field({})
    edited: dict[str, JsonValue] = optional_field({})
    facts: AgentFacts | None = None


class ResumeState(BaseModel):
    """A page of the state.

    `input`: the run's input, without prompt and messages; on the last page its `carried` is what another run gets of this
    one. `trace`: its W3C traceparent, empty where it was not opened. `messages`: as many as fit; each call has a result,
    also in a step that was cut short. `next`: the number of the next page's first message, null at the end. `step`: before
    which the conversation was asked for. `fork`, on the last page: for a run that begins there. `earlier`: the run (`id`,
    `run_id`) that has the step instead.
    """

    input: StartInput
    trace: str = ""
    messages: list[Message] = []
    next: int | None = None
    step: int | None = optional_field()
    fork: ForkState | None = optional_field()
    earlier: dict[str, str] | None = optional_field()
