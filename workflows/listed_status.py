"""The search attributes of a run: its agent and its status, as lists of runs show them.

Each change is an event in the history, so there is one only where a run opens or ends, and where it begins or ceases to wait
for a person.
"""

from __future__ import annotations

from collections.abc import Collection

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from mulligan.wire.search_attributes import AGENT_ATTRIBUTE, STATUS_ATTRIBUTE

__all__ = ["list_run", "set_listed_status"]


def list_run(agent: str, attributes: Collection[str]) -> None:
    """Set those of the run's search attributes that `attributes` names: setting any other would block the run."""
    updates: list[SearchAttributeUpdate[str]] = []
    if AGENT_ATTRIBUTE.name in attributes:
        updates.append(AGENT_ATTRIBUTE.value_set(agent))
    if STATUS_ATTRIBUTE.name in attributes:
        updates.append(STATUS_ATTRIBUTE.value_set("running"))
    if updates:
        workflow.upsert_search_attributes(updates)


def set_listed_status(status: str) -> None:
    """Change the status, if the run has that attribute. Continue-as-new keeps it."""
    listed = workflow.info().typed_search_attributes.get(STATUS_ATTRIBUTE)
    if listed is not None and listed != status:
        workflow.upsert_search_attributes([STATUS_ATTRIBUTE.value_set(status)])
