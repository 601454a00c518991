"""Signals whose content nobody can read, or that have too many arguments.

The fault: a signal with more arguments than its handler has parameters fails the workflow task, again and again. One
whose content cannot be read never reaches its handler. But the name of `stop` says what is wanted, so such a signal stops
the run all the same, and the run's reason says that the content could not be read. Others are ignored, and the worker's
log says so.

Upstream: temporalio/sdk-python issue 355 (open) for the arguments; that signals are dropped is decided (issue 347,
closed). Needed with temporalio 1.35.0.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import SignalWorkflow, WorkflowActivation
from temporalio.converter import PayloadConverter
from temporalio.worker import WorkflowInstanceDetails

from mulligan.features import all_words
from mulligan.wire.read_payload import read_payloads
from mulligan.wire.updates import STOP
from mulligan.worker.sdk_workarounds.unreadable_payloads import NOT_HERE, NOT_NOW

if TYPE_CHECKING:
    from temporalio.workflow import _Definition

_log = logging.getLogger(__name__)
_WITH_CONTENT = frozenset(all_words().signals)
"""The other signals of Mulligan's own workflows."""
_UNREADABLE_STOP = Payload(
    metadata={"encoding": b"json/plain"}, data=b'{"reason": "The content of the stop signal could not be read."}'
)
MOST_NAME_CHARS = 100


def waits_of_signal(defn: _Definition, name: str) -> Collection[bytes]:
    """The values of `RETRY` for which a signal with an unreadable content waits. Users' workflows may need any content."""
    if _is_own(defn):
        return (NOT_NOW,) if name in _WITH_CONTENT else ()  # these are too small for external storage
    return () if _is_stop(defn, name) else (NOT_NOW, NOT_HERE)


class ReadableSignals:
    """The signals of one workflow's instance.

    Handlers of Mulligan's own workflows get at most one argument. Of users' workflows, only `stop` is looked at.
    """

    def __init__(self, converter: PayloadConverter, det: WorkflowInstanceDetails) -> None:
        self._converter = converter
        self._definition, self._workflow_id = det.defn, det.info.workflow_id
        self._is_warned = False

    def make_readable(self, act: WorkflowActivation) -> None:
        """Leave the signals of an activation only a content that the converter reads."""
        for job in act.jobs:
            if not job.HasField("signal_workflow"):
                continue
            signal = job.signal_workflow
            is_stop = _is_stop(self._definition, signal.signal_name)
            if not (is_stop or _is_own(self._definition)):
                continue
            fault = _fault(signal, self._converter)
            if fault:
                del signal.input[:]
                if is_stop:
                    signal.input.append(_UNREADABLE_STOP)
            elif is_stop or signal.signal_name in _WITH_CONTENT:
                del signal.input[1:]
                continue
            if not (act.is_replaying or self._is_warned):
                self._is_warned = True
                name, what = signal.signal_name[:MOST_NAME_CHARS], "the run stops" if is_stop else "it is ignored"
                why = f"cannot be read ({fault})" if fault else "has a name that this workflow does not know"
                _log.warning("A signal %r of the workflow %s %s; %s.", name, self._workflow_id, why, what)


def _is_own(defn: _Definition) -> bool:
    return defn.cls.__module__.startswith("mulligan.workflows.")


def _is_stop(defn: _Definition, name: str) -> bool:
    """Whether it is the signal that stops agents. A workflow may define another one of that name."""
    return name == STOP and STOP not in defn.signals


def _fault(signal: SignalWorkflow, converter: PayloadConverter) -> str:
    """Why the first argument of a signal cannot be read; empty if it can, or if there is none."""
    try:
        read_payloads(converter, signal.input[:1])
    except ValueError as error:
        return str(error)
    return ""
