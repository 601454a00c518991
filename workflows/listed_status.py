"""What lists show of a run: its agent, status and origin as search attributes; its status while it is open as a memo.

Each change is an event in the history, so there is one only where a run opens or ends, and where it begins or ceases to
wait. Where somebody has removed the attributes from the namespace, the run goes on without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from mulligan.wire.agent_version import VERSION_MEMO, AgentVersion
from mulligan.wire.run_status import PENDING_MEMO, STATUS_MEMO, open_status
from mulligan.wire.search_attributes import AGENT_ATTRIBUTE, STATUS_ATTRIBUTE
from mulligan.workflows.memo import memo_json
from mulligan.workflows.recorded_decision import recorded_decision

ARE_REFUSED = "mulligan_attributes_are_refused"
"""The function of the worker (`workflow.extern_functions`) that says whether the server refuses this run's attributes."""


def list_run(agent: str, attributes: Collection[str]) -> None:
    """Set those of the run's search attributes that `attributes` names: setting any other would block the run."""
    updates: list[SearchAttributeUpdate[str]] = []
    if AGENT_ATTRIBUTE.name in attributes:
        updates.append(AGENT_ATTRIBUTE.value_set(agent))
    if STATUS_ATTRIBUTE.name in attributes:
        updates.append(STATUS_ATTRIBUTE.value_set("running"))
    _upsert(updates)


def list_version(version: AgentVersion | None) -> None:
    """Show the version of the agent's file by which the run begins, if the agent is one."""
    if version is not None:
        workflow.upsert_memo({VERSION_MEMO: version.listed})


def set_listed_status(status: str) -> None:
    """Change the status, if the run has that attribute. Continue-as-new keeps it."""
    listed = workflow.info().typed_search_attributes.get(STATUS_ATTRIBUTE)
    if listed is not None and listed != status:
        _upsert([STATUS_ATTRIBUTE.value_set(status)])


class ListedWaits:
    """What lists show of an open run: its status by the kinds of what it waits for, and whether it waits for people."""

    def __init__(self, open_kinds: Callable[[], Iterable[str | None]]) -> None:
        """`open_kinds` returns the kinds of the open waits of the whole workflow. None: a wait that is not shown."""
        self._open_kinds = open_kinds
        self._listed: dict[str, Any] | None = None

    def update(self) -> None:
        """A wait begins or ends, or its kind may have changed: list that, if it makes a difference."""
        kinds = set(self._open_kinds())
        now: dict[str, Any] = {STATUS_MEMO: open_status(kinds), PENDING_MEMO: int("person" in kinds)}
        before = self._listed
        if before is None:  # the workflow run before this one may have listed something
            before = {STATUS_MEMO: memo_json(STATUS_MEMO) or "running", PENDING_MEMO: memo_json(PENDING_MEMO) or 0}
        if now != before:
            workflow.upsert_memo({name: value for name, value in now.items() if before[name] != value})
            set_listed_status(now[STATUS_MEMO])
        self._listed = now


def _upsert(updates: list[SearchAttributeUpdate[str]]) -> None:
    """Set attributes. If the worker has seen that the server refuses them, record instead that they were left out."""
    if not updates:
        return
    left_out = f"unlisted-{workflow.random().getrandbits(64):x}"  # the same number in each replay
    if not recorded_decision(left_out, workflow.extern_functions().get(ARE_REFUSED, bool)):
        workflow.upsert_search_attributes(updates)
