"""What a worker's process writes to stderr: its progress, warnings, and failures as lines."""

from __future__ import annotations

import logging
import sys

from temporalio.exceptions import FailureError

from mulligan.activities.mcp.server_log import WithoutTracebacks

__all__ = ["say", "set_up_logging"]


class _OneLine(logging.Filter):
    """A failure that we raised on purpose (an endpoint that is down, an unknown agent) is a line, not a stack trace."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the trace off; keep what was said."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FailureError):
            of = getattr(record, "temporal_activity", None) or getattr(record, "temporal_workflow", None) or {}
            kind = of.get("activity_type") or of.get("workflow_type")
            # A task for an activity that is not served has no such fields, but its failure names all of it.
            record.msg = f"{kind} of {of.get('workflow_id')}: {error}" if kind else str(error)
            record.args, record.exc_info = (), None
        return True


def _not_worker_failed(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Worker failed")


def set_up_logging() -> None:
    """Warnings to stderr."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(WithoutTracebacks())
    for name in ("temporalio.activity", "temporalio.workflow"):
        logging.getLogger(name).addFilter(_OneLine())
    # "Worker failed, shutting down", with a trace: `WorkerGroup` says it in a line, with the reason.
    logging.getLogger("temporalio.worker._worker").addFilter(_not_worker_failed)


def say(line: str) -> None:
    """Progress goes to stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)
