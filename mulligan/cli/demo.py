"""`mulligan demo`: a run of a scripted agent, with worker and dev server, without a key."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

from mulligan.cli._terminal import (
    NOT_COMPLETED,
    OK,
    AsJson,
    err,
    fail,
    out,
    print_json,
    print_line,
    print_progress,
)

FILES = {
    "orders.md": """# Orders

## Ada
Order 7, two lamps: waiting for the carrier.

## Grace
Order 8, one chair: delivered.
""",
    "notes/carrier.md": "The carrier comes on Tuesdays. Order 7 is waiting for it.\n",
}


async def demo(as_json: AsJson = False) -> int:
    """Watch an agent make mistakes, recover and finish: on an embedded Temporal server, with real tools, without an API key.

    The scripted model calls a tool that does not exist, omits a field, writes truncated JSON, reads a file that does not
    exist, and misspells a field. The command prints each step and the run's trace.
    """
    from mulligan.devserver import DevServerError, any_server

    try:
        async with any_server(print_progress) as server:
            with tempfile.TemporaryDirectory(prefix="mulligan-demo-") as folder:
                return await _run_on(server, Path(folder), as_json=as_json)
    except DevServerError as error:
        fail(str(error))


async def _run_on(server: Any, folder: Path, *, as_json: bool) -> int:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from mulligan.cli._runs import follow_to_end
    from mulligan.client.connect import connect
    from mulligan.client.read_run import read_steps
    from mulligan.observe.telemetry import Telemetry
    from mulligan.worker.loading import SHIPPED, load
    from mulligan.worker.logs import set_up_logging
    from mulligan.worker.wiring import running_worker

    set_up_logging()
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    os.environ["MULLIGAN_WORKSPACE"] = str(folder)
    client = await (connect(server.address, namespace=server.namespace) if server.embedded else connect())
    print_progress(f"Temporal at {server.address}; workspace {folder}: {', '.join(FILES)}")
    # A separate task queue: a worker that polls `agents` on this server must not serve this run.
    queue, run_id = f"mulligan-demo-{secrets.token_hex(3)}", f"demo-{secrets.token_hex(4)}"
    spans = InMemorySpanExporter()
    telemetry = Telemetry(SimpleSpanProcessor(spans))
    began = time.monotonic()
    async with running_worker(client, load(SHIPPED), telemetry, queue):
        run_input = {"agent": "demo", "prompt": "Sum up what Ada is waiting for."}
        print_progress(f"run {run_id}: {run_input['prompt']}")
        err.print()
        handle = await client.start_workflow("AgentWorkflow", run_input, id=run_id, task_queue=queue)
        end = await follow_to_end(client, handle, to_stderr=as_json)
        steps = await read_steps(client, handle)
    seconds = time.monotonic() - began
    telemetry.shutdown()
    if as_json:
        print_json({"id": run_id, "status": end.status, "result": end.result, "error": end.error, "steps": steps})
    else:
        _print_trace(spans.get_finished_spans(), seconds)
    return OK if end.completed else NOT_COMPLETED


def _print_trace(spans: Any, seconds: float) -> None:
    from mulligan.cli._trace import draw, heading
    from mulligan.trace_view.trace_span import from_sdk_spans

    trace_spans = from_sdk_spans(spans)
    trace_id = f"{spans[0].context.trace_id:032x}" if spans else "(none)"
    print_line(f"\n{heading(trace_id, trace_spans, 'from this process')}")
    draw(out, trace_spans)
    err.print()
    print_progress(f"{seconds:.1f} s. Next: write your own agent, as the README shows, or see `mulligan --help`.")
