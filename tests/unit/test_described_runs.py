"""A run in a list, by what Temporal knows of it: which entries of its memo are shown, and which status it has."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Memo
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.client import WorkflowExecution

from mulligan.client.converter import data_converter
from mulligan.client.find_runs import CursorError, StatusError, _cursor, _parse_cursor, _temporal_status, describe_run

START = datetime(2026, 11, 25, 12, tzinfo=UTC)


async def described(
    memo: dict[str, Any] | None = None, *, status: int = Status.WORKFLOW_EXECUTION_STATUS_FAILED, **fields: Any
) -> dict[str, Any]:
    """A run that has ended otherwise than with a result, or is open: nothing more is asked for."""
    info = WorkflowExecutionInfo(status=cast(Any, status))
    info.execution.workflow_id, info.execution.run_id = "r", "x"
    info.type.name = fields.get("type", "AgentWorkflow")
    info.start_time.FromDatetime(START)
    info.close_time.FromDatetime(START + timedelta(seconds=90))
    if "parent" in fields:
        info.parent_execution.workflow_id = fields["parent"]
    encoded = {name: (await data_converter.encode([value]))[0] for name, value in (memo or {}).items()}
    info.memo.CopyFrom(Memo(fields=encoded))
    execution = WorkflowExecution._from_raw_info(info, "default", data_converter)
    return await describe_run(cast(Any, None), execution)


async def test_a_run_without_a_memo_has_what_temporal_knows() -> None:
    run = await described()
    started = run.pop("started")
    assert datetime.fromisoformat(started) == START
    assert run == {"id": "r", "agent": None, "status": "failed", "seconds": 90.0}


@pytest.mark.parametrize(
    ("memo", "shown"),
    [
        ({"agent": "a"}, {"agent": "a"}),
        ({"tenant": "ada"}, {"tenant": "ada"}),
        ({"tenant": ""}, {}),
        ({"mulligan_prompt": "\nGo.\nNow."}, {"prompt": "Go."}),
        ({"mulligan_prompt": ""}, {}),
        ({"mulligan_user": "u" * 1_000}, {"user": "u"}),
        ({"mulligan_user": ""}, {}),
        ({"mulligan_version": {"digest": "d", "label": "l", "share": 1}}, {"version": "d", "label": "l"}),
        (
            {"forked_from": {"id": "f", "run_id": "g", "step": 3}},
            {"forked_from": {"id": "f", "run_id": "g", "step": 3}},
        ),
        ({"forked_from": {"id": "f", "run_id": "g"}}, {}),
        ({"forked_from": {"id": 1, "step": 3}}, {}),
        ({"other": 1}, {}),
    ],
)
async def test_the_memo_says_whose_run_it_is_and_what_for(memo: dict[str, Any], shown: dict[str, Any]) -> None:
    run = await described(memo)
    for name in ("id", "status", "started", "seconds"):
        del run[name]
    if run["agent"] is None:
        del run["agent"]
    if "user" in run:
        assert 50 < len(run["user"]) < 1_000
        run["user"] = run["user"][0]
    assert run == shown


async def test_a_workflow_of_a_users_own_has_its_type_and_a_run_that_another_called_its_parent() -> None:
    run = await described(type="Orders", parent="p")
    assert (run["type"], run["parent"]) == ("Orders", "p")
    assert not {"type", "parent"} & (await described()).keys()


@pytest.mark.parametrize(
    ("status", "memo", "shown"),
    [
        (Status.WORKFLOW_EXECUTION_STATUS_RUNNING, {}, "running"),
        (Status.WORKFLOW_EXECUTION_STATUS_RUNNING, {"mulligan_status": "waiting"}, "waiting"),
        (Status.WORKFLOW_EXECUTION_STATUS_RUNNING, {"mulligan_status": "other"}, "running"),
        (Status.WORKFLOW_EXECUTION_STATUS_FAILED, {"mulligan_status": "waiting"}, "failed"),
        (Status.WORKFLOW_EXECUTION_STATUS_CANCELED, {}, "cancelled"),
        (Status.WORKFLOW_EXECUTION_STATUS_TERMINATED, {}, "terminated"),
        (Status.WORKFLOW_EXECUTION_STATUS_TIMED_OUT, {}, "timed_out"),
    ],
)
async def test_the_status_is_the_runs_own_while_it_is_open(status: int, memo: dict[str, Any], shown: str) -> None:
    assert (await described(memo, status=status))["status"] == shown


async def test_the_result_of_a_users_own_workflow_is_not_read() -> None:
    assert (await described(status=Status.WORKFLOW_EXECUTION_STATUS_COMPLETED, type="Orders"))["status"] == "completed"


def test_a_status_that_is_none_is_answered_with_those_there_are() -> None:
    with pytest.raises(StatusError, match=r"must be one of: .*completed"):
        _temporal_status("done")
    assert _temporal_status("max_steps") == _temporal_status("completed")


@pytest.mark.parametrize(("token", "skip"), [(b"page", 0), (b"page", 7), (None, 7)])
def test_a_cursor_is_read_back(token: bytes | None, skip: int) -> None:
    assert _parse_cursor(_cursor(token, skip)) == (token, skip)


@pytest.mark.parametrize("cursor", ["x", "W10=", "e30=", "WzEsIDJd", "é"])
def test_a_cursor_of_no_page_is_refused(cursor: str) -> None:
    with pytest.raises(CursorError, match="give the `next` of the page before"):
        _parse_cursor(cursor)
    assert (_cursor(None, 0), _cursor(b"", 0), _parse_cursor(None), _parse_cursor("")) == (
        None,
        None,
        (None, 0),
        (None, 0),
    )


@given(
    token=st.binary(max_size=60), skip=st.integers(0, 100), place=st.integers(0, 200), letter=st.sampled_from("aZ09-_=")
)
def test_a_cursor_that_somebody_has_changed_is_that_of_its_page_or_refused(
    token: bytes, skip: int, place: int, letter: str
) -> None:
    cursor = _cursor(token, skip) or _cursor(b"page", 1) or ""
    place %= len(cursor)
    try:
        read = _parse_cursor(cursor[:place] + letter + cursor[place + 1 :])
    except CursorError:
        read = None
    assert read in (None, _parse_cursor(cursor))


@given(token=st.text(max_size=60) | st.integers(), skip=st.integers() | st.text(max_size=5), rest=st.lists(st.text()))
def test_a_cursor_that_somebody_has_made_is_refused(token: Any, skip: Any, rest: list[str]) -> None:
    """Temporal's server would answer its token as if it had failed, and be asked for 10 s."""
    made = base64.urlsafe_b64encode(json.dumps([token, skip, *rest]).encode()).decode()
    with pytest.raises(CursorError):
        _parse_cursor(made)
