"""Whatever a client sends to a run, no activation of its workflow fails: the run fails once, or the request is refused."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import (
    DoUpdate,
    InitializeWorkflow,
    QueryWorkflow,
    RemoveFromCache,
    SignalWorkflow,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.worker import UnsandboxedWorkflowRunner

from mulligan import InvalidRunInputError
from mulligan.activities.answers.size_limits import PROVIDER_BYTES
from mulligan.activities.answers.unique_ids import unique_ids
from mulligan.activities.models._json_fields import token_count
from mulligan.activities.models.fit_provider_data import fit_provider_data
from mulligan.client.converter import PayloadConverter
from mulligan.prices import Price
from mulligan.run_input import parse_run_input
from mulligan.schema.json_limits import MOST_DEPTH, JsonMeter, is_deeper
from mulligan.schema.tool_schema import provider_schema
from mulligan.testing._workflow_details import instance_details
from mulligan.values import ToolCall, Usage
from mulligan.wire.agent_facts import DEFINITION_QUERY, INPUT_QUERY
from mulligan.wire.compressed_input import decompress_input
from mulligan.wire.conversation_ref import CONVERSATION_QUERY, INPUT_MESSAGES_QUERY
from mulligan.wire.resume_page import RESUME_STATE_QUERY
from mulligan.wire.run_context import CALL_MEMO
from mulligan.worker.sdk_workarounds.readable_failures import remove_unreadable_details
from mulligan.worker.sdk_workarounds.start_arguments import join_arguments
from mulligan.workflows.agent_workflow import AgentWorkflow
from mulligan.workflows.conversation.continue_as_new import encode_state
from tests.support.examples import examples

FIRST_RUN = "run"
QUERIES = [
    "progress", "messages", "steps", "events", "pending", "nothing", RESUME_STATE_QUERY, CONVERSATION_QUERY,
    INPUT_MESSAGES_QUERY, INPUT_QUERY, DEFINITION_QUERY,
]  # fmt: skip
UPDATES = ["send_message", "decide", "answer", "stop", "complete", "mulligan_ask_person", "nothing"]
SIGNALS = ["stop", "nothing"]


def payload(data: bytes, encoding: bytes = b"json/plain", **metadata: bytes) -> Payload:
    return Payload(metadata={"encoding": encoding, **metadata}, data=data)


def as_json(value: Any) -> Payload:
    return payload(json.dumps(value).encode())


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


class Instance:
    """The real workflow, with activations made here. `failed`: the messages of activations that failed."""

    def __init__(self, memo: Mapping[str, Payload] = {}, headers: Mapping[str, Payload] = {}, **info: Any) -> None:
        definition = workflow._Definition.must_from_class(AgentWorkflow)
        details = instance_details(definition, "w", datetime.now(UTC), caller=None, memo=dict(memo))
        details = dataclasses.replace(details, info=dataclasses.replace(details.info, headers=dict(headers), **info))
        self.headers = dict(headers)

        async def create() -> Any:  # the SDK needs a running event loop
            return UnsandboxedWorkflowRunner().create_instance(details)

        instance = asyncio.run(create())
        self._activate = instance.activate
        self._thread = ThreadPoolExecutor(1)
        self.failed: list[str] = []
        self.commands: list[Any] = []

    def start(self, *arguments: Payload) -> None:
        self.send(
            initialize_workflow=InitializeWorkflow(
                workflow_type="AgentWorkflow", workflow_id="w", arguments=arguments, headers=self.headers, attempt=1
            )
        )

    def send(self, **job: Any) -> None:
        activation = WorkflowActivation(run_id=FIRST_RUN, jobs=[WorkflowActivationJob(**job)])
        activation.timestamp.FromDatetime(datetime.now(UTC))
        join_arguments(activation)
        remove_unreadable_details(activation, PayloadConverter())
        completion = self._thread.submit(self._activate, activation).result()
        if completion.HasField("failed"):
            self.failed.append(completion.failed.failure.message)
        self.commands += completion.successful.commands
        assert completion.ByteSize() < 4_000_000

    def signal(self, name: str, *arguments: Payload) -> None:
        self.send(signal_workflow=SignalWorkflow(signal_name=name, input=arguments))

    def update(self, name: str, *arguments: Payload) -> None:
        self.send(do_update=DoUpdate(id="u", protocol_instance_id="u", name=name, input=arguments, run_validator=True))

    def query(self, name: str, *arguments: Payload) -> None:
        self.send(query_workflow=QueryWorkflow(query_id="q", query_type=name, arguments=arguments))

    def failure(self) -> Any:
        """The failure with which the run ended, if it did."""
        found = [each.fail_workflow_execution for each in self.commands if each.HasField("fail_workflow_execution")]
        return found[0].failure if found else None

    def has_started_activity(self) -> bool:
        return any(each.HasField("schedule_activity") for each in self.commands)

    def close(self) -> None:
        """Evict the run, as a worker does. Coroutines that wait would be closed by the garbage collector, in another run's thread."""
        self.send(remove_from_cache=RemoveFromCache())
        self._thread.shutdown()


@pytest.fixture
def made() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def make(**given: Any) -> Instance:
            return stack.enter_context(contextlib.closing(Instance(**given)))

        yield make


GOOD = as_json({"agent": "a", "prompt": "hello"})


def test_a_start_with_two_inputs_fails_the_run_once(made: Any) -> None:
    for second in (GOOD, payload(b"{"), payload(b"x", b"binary/unheard-of"), payload(deep(100_000))):
        run = made()
        run.start(GOOD, second)
        assert run.failed == []
        assert run.failure().application_failure_info.type == "InvalidRunInputError"
        assert "was started with 2 arguments" in run.failure().message


def test_the_signal_stop_with_any_number_of_arguments_stops_the_run(made: Any) -> None:
    for arguments in ((), (as_json({"reason": "r"}), as_json(1)), (as_json(5),), (as_json(1),) * 5):
        run = made()
        run.start(GOOD)
        run.signal("stop", *arguments)
        assert run.failed == []


@pytest.mark.parametrize(
    "data",
    [deep(100_000), b'{"traceparent":' + deep(2_000) + b"}", b"\xff", b'{"traceparent":"\\ud800"}', b'{"traceparent":"' + b"a" * 3_000_000 + b'"}'],
    ids=["deep", "deep value", "no UTF-8", "surrogate", "long"],
)  # fmt: skip
def test_a_trace_header_that_cannot_be_read_is_ignored(made: Any, data: bytes) -> None:
    run = made(headers={"_tracer-data": payload(data)})
    run.start(GOOD)
    assert run.failed == []
    assert run.has_started_activity()


def test_a_memo_that_cannot_be_read_is_ignored(made: Any) -> None:
    memo = {name: payload(b"x", b"unheard-of") for name in ("mulligan_status", "mulligan_pending", "agent", CALL_MEMO)}
    run = made(memo=memo, parent=workflow.ParentInfo("testing", "r", "p"))
    run.start(GOOD)
    assert run.failed == []
    assert run.has_started_activity()


def test_call_ids_of_megabytes_are_shortened_in_the_message() -> None:
    long_id = "x" * 3_000_000
    result = {"role": "tool", "call_id": long_id, "name": "n", "text": ""}
    answer = {"role": "assistant", "tool_calls": [{"id": long_id, "name": "n", "arguments": ""}]}
    for messages in ([result], [answer]):
        with pytest.raises(InvalidRunInputError) as raised:
            parse_run_input(json.dumps({"agent": "a", "prompt": "p", "messages": messages}).encode())
        assert len(str(raised.value)) < 500


FORGED = encode_state({"agent": "a", "conversation": {}})


@pytest.mark.parametrize("mark", [None, b"guessed"])
@pytest.mark.parametrize("schedule", ["* * * * *", None], ids=["cron", "retry"])
def test_bytes_of_a_client_are_no_carried_state_in_a_later_run_of_its_chain(
    made: Any, mark: bytes | None, schedule: str | None
) -> None:
    argument = payload(FORGED, b"binary/plain", **({"mulligan-chain": mark} if mark else {}))
    run = made(continued_run_id="before", cron_schedule=schedule)
    run.start(argument)
    assert run.failed == []
    assert run.failure().application_failure_info.type == "InvalidRunInputError"


def test_a_state_is_accepted_from_a_run_of_its_own_chain(made: Any) -> None:
    marked = payload(FORGED, b"binary/plain", **{"mulligan-chain": FIRST_RUN.encode()})
    for schedule in ("* * * * *", None):
        run = made(continued_run_id="before", cron_schedule=schedule)
        run.start(marked)
        assert run.failure() is None  # the state is read: this one is incomplete, and a bug in ours fails the task
        assert run.failed


def test_a_small_input_of_millions_of_messages_is_refused_at_once() -> None:
    data = b'{"agent":"a","messages":[' + b'{"role":"user","text":"a"},' * 1_900_000 + b"]}"
    small = zstandard.compress(data, 19)
    del data
    assert len(small) < 6_000
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(InvalidRunInputError, match="more than 200,000 values"):
        decompress_input(small)
    assert time.process_time() - started < 3
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50_000_000


def test_an_input_that_is_nested_too_deep_is_refused() -> None:
    for data in (deep(MOST_DEPTH + 1), deep(1_000_000), zstandard.compress(deep(1_000_000))):
        with pytest.raises(InvalidRunInputError, match=r"levels deep|values"):
            decompress_input(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('"\\[]{},ax', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"\\{[', max_size=3), inner, max_size=3),
    max_leaves=20,
)


def depth(value: Any) -> int:
    if not isinstance(value, (dict, list)):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


@settings(max_examples=examples(60), deadline=None)
@given(value=JSON, cut=st.integers(1, 7))
def test_json_is_measured_the_same_in_pieces_as_whole(value: Any, cut: int) -> None:
    data = json.dumps(value).encode()
    whole, pieces = JsonMeter(), JsonMeter()
    whole.add(data)
    for start in range(0, len(data), cut):
        pieces.add(data[start : start + cut])
    assert vars(whole) == vars(pieces)
    assert whole.depth == depth(value)
    assert is_deeper(value, 2) == (depth(value) > 2)


def test_usage_too_large_for_a_price_is_cut() -> None:
    tokens = token_count({"n": 10**400}, "n")
    assert (Price(input=1.0, output=1.0).of(Usage(input_tokens=tokens, output_tokens=tokens)) or 0) > 0


def test_items_of_an_answer_that_are_nested_too_deep_are_left_out() -> None:
    def data_of(levels: int) -> Any:
        return fit_provider_data({"a": json.loads(deep(levels))}, PROVIDER_BYTES)

    assert data_of(50) is not None
    assert data_of(200) is None


def test_a_default_of_an_mcp_schema_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(TypeError, match="levels deep; the limit is 150"):
        provider_schema({"type": "object", "properties": {"a": {"default": json.loads(deep(193))}}})


@pytest.mark.parametrize("digest", ["", "d" * 64], ids=["plain", "after a compaction"])
def test_another_call_without_an_id_gets_another_id(digest: str) -> None:
    """After `workflow reset` the model may write another call at the same place: its idempotency key must be another."""

    def made_id(arguments: str) -> str:
        return unique_ids([ToolCall(id="", name="pay", arguments=arguments)], set(), 1, digest)[0].id

    assert made_id('["ada", 5]') == made_id('["ada", 5]')
    assert made_id('["ada", 5]') != made_id('["bob", 900]')


DATA = (
    st.binary(max_size=40)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.sampled_from([deep(150), deep(250), deep(5_000), b"1e400", b"9" * 5_000, b'"\\ud800"', FORGED, b'"' + b"x" * 2_000_000 + b'"'])
    | JSON.map(lambda value: zstandard.compress(json.dumps(value).encode()))
    | st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("agent", "prompt", "messages", "metadata", "max_steps", "traceparent", "text", "call_id", "decision", "arguments", "reason", "by", "id", "conversation", "result", "error", "trace_id", "content", "question"), JSON),
    ).map(lambda value: json.dumps(value).encode())
)  # fmt: skip
PAYLOADS = st.builds(
    payload,
    DATA,
    st.sampled_from([b"json/plain", b"binary/plain", b"binary/null", b"json/protobuf", b"unheard-of", b""]),
)
ARGUMENTS = st.lists(PAYLOADS | st.just(GOOD), max_size=3)
JOBS = st.lists(
    st.tuples(st.just("signal"), st.sampled_from(SIGNALS), ARGUMENTS)
    | st.tuples(st.just("update"), st.sampled_from(UPDATES), ARGUMENTS)
    | st.tuples(st.just("query"), st.sampled_from(QUERIES), ARGUMENTS),
    max_size=6,
)


@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    start=ARGUMENTS | st.just([GOOD]),
    jobs=JOBS,
    headers=st.dictionaries(st.just("_tracer-data"), PAYLOADS),
    memo=st.dictionaries(st.sampled_from(["mulligan_status", "mulligan_pending", "agent", "x"]), PAYLOADS),
    info=st.sampled_from([{}, {"continued_run_id": "r", "cron_schedule": "* * * * *"}]),
)
def test_no_activation_fails_whatever_a_client_sends(
    start: Sequence[Payload],
    jobs: Sequence[tuple[str, str, Sequence[Payload]]],
    headers: Mapping[str, Payload],
    memo: Mapping[str, Payload],
    info: Mapping[str, Any],
) -> None:
    with contextlib.closing(Instance(memo, headers, **info)) as run:
        run.start(*start)
        for kind, name, arguments in jobs:
            getattr(run, kind)(name, *arguments)
        assert run.failed == []
