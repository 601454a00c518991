"""One call of a step, as the features see it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mulligan.foreign_results import ForeignResults
from mulligan.values import Decision, ToolCall
from mulligan.wire.agent_facts import ToolFacts
from mulligan.wire.model_call import PreparedCall
from mulligan.wire.tool_call import CallTool, digest_of_call
from mulligan.workflows.conversation.records import CallRecord


@dataclass(eq=False, kw_only=True)
class StepCall:
    """One call of the agent's newest step.

    Attributes:
        index: Its place among the step's calls; those that calls make come after the calls of the answer.
        of: The index of the call that makes it, as a script does; None: it is a call of the answer.
        call: The call as the model reads it.
        prepared: What the inspection of the answer says of it.
        record: What its step shows of it. A person may have edited its arguments.
        facts: How its tool is scheduled; None if the tool was added to the agent after the turn had opened.
        is_carried: Whether its step began in an earlier workflow run.
        after_untrusted: Whether what makes it had read a result that others may have written, in the same step.
        is_stopped: Whether a request to stop has ended it: the model has made no mistake.
        waits_for: What it waits for before it can run: a person's approval, or answer. Features may add that.
        pinned: What the options of its tool have pinned, by the names of their features.
        timeout: Seconds for which it waits for a person; None: no limit. A feature may set it.
        reminder: Seconds after which that is reported; None: never. A feature may set it.
        is_request_written: Whether there is a span of the request to a person, if the model's call asks one.
        handed_down: Fields of the input of the run that it starts, if its tool is an agent. Features may set them before.
        foreign_results: The untrusted results that whoever approves it is shown.
        request: The input of its activity, as soon as the call runs. Features may change it before.
    """

    index: int
    call: ToolCall
    prepared: PreparedCall
    record: CallRecord
    facts: ToolFacts | None
    is_carried: bool
    of: int | None = None
    after_untrusted: bool = False
    is_stopped: bool = False
    waits_for: Literal["approval", "question"] | None = field(init=False)
    pinned: Mapping[str, Any] = field(init=False)
    timeout: float | None = None
    reminder: float | None = None
    is_request_written: bool = True
    handed_down: Mapping[str, Any] = field(default_factory=dict)
    foreign_results: ForeignResults | None = None
    request: CallTool | None = None

    def __post_init__(self) -> None:
        self.waits_for = self.prepared.waits_for
        self.pinned = self.facts.features if self.facts is not None else {}

    @property
    def role(self) -> str | None:
        """The role that whoever approves it must have; None: everybody may."""
        return self.prepared.role or (self.facts.role if self.facts is not None else None)

    @property
    def decision(self) -> Decision | None:
        """What a person has decided, without the model's own arguments: history has them."""
        return self.record.decision and self.record.decision.model_copy(update={"before": None})

    @property
    def key(self) -> str:
        """A digest of tool and arguments: those that mean the same have the same one."""
        arguments = self.prepared.key or self.record.digests[0]
        return hashlib.sha256(f"{self.call.name} {arguments}".encode()).hexdigest()[:16]

    @property
    def digest(self) -> str:
        """What its idempotency key depends on. An edit does not change it, nor does continue-as-new after an edit."""
        return self.record.digest or digest_of_call(self.call)

    @property
    def written_call(self) -> ToolCall:
        """The call with the text of its arguments that the model wrote."""
        return self.call.model_copy(update={"arguments": self.record.written(self.call)})

    @property
    def repaired_by(self) -> list[str]:
        """The names of what has repaired its arguments."""
        return [repair.by for repair in self.prepared.repairs]
