"""`mulligan demo`: all in one process and one embedded server; no key needed."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

from mulligan.cli import _terminal
from mulligan.cli._terminal import AsJson, fail, put_json, run, say

FILES = {
    "orders.md": """# Orders

## Ada
Order 7, two lamps: waiting for the carrier.

## Grace
Order 8, one chair: delivered.
""",
    "notes/carrier.md": "The carrier comes on Tuesdays. Order 7 is waiting for it.\n",
}


def demo(as_json: AsJson = False) -> None:
    """See an agent make mistakes, recover, and finish: on an embedded Temporal server, with real tools, without a key.

    The scripted model calls a tool that there is not, leaves a field out, writes JSON that is cut off, asks for a file that
    is not there, and names a field wrongly. It prints each step and the run's trace.
    """
    run(_demo(as_json=as_json))


async def _demo(*, as_json: bool) -> int:
    from mulligan.devserver import DevServerError, any_server

    try:
        async with any_server(say) as server:
            with tempfile.TemporaryDirectory(prefix="mulligan-demo-") as folder:
                return await _on(server, Path(folder), as_json=as_json)
    except DevServerError as error:
        fail(str(error))


async def _on(server: Any, folder: Path, *, as_json: bool) -> int:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from mulligan.cli.tail import follow_to_the_end
    from mulligan.client.connect import connect
    from mulligan.client.read_run import read_steps
    from mulligan.observe.telemetry import Telemetry
    from mulligan.worker.loading import load
    from mulligan.worker.logs import set_up_logging
    from mulligan.worker.wiring import running_worker

    set_up_logging()
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    os.environ["MULLIGAN_WORKSPACE"] = str(folder)
    client = await (connect(server.address, namespace=server.namespace) if server.embedded else connect())
    say(f"Temporal at {server.address}; workspace {folder}: {', '.join(FILES)}")
    # A queue of its own: a worker that serves `agents` on this server must not take the run.
    queue, run_id = f"mulligan-demo-{secrets.token_hex(3)}", f"demo-{secrets.token_hex(4)}"
    spans = InMemorySpanExporter()
    telemetry = Telemetry(SimpleSpanProcessor(spans))
    began = time.monotonic()
    async with running_worker(client, load([]), telemetry, queue):
        given = {"agent": "demo", "prompt": "Sum up what Ada is waiting for."}
        say(f"run {run_id}: {given['prompt']}")
        _terminal.err.print()
        handle = await client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=queue)
        end = await follow_to_the_end(client, handle, to_stderr=as_json)
        steps = await read_steps(client, handle)
    seconds = time.monotonic() - began
    telemetry.shutdown()
    if as_json:
        put_json({"id": run_id, "status": end.status, "result": end.result, "error": end.error, "steps": steps})
    else:
        _picture(spans.get_finished_spans(), seconds)
    return _terminal.OK if end.completed else _terminal.NOT_COMPLETED


def _picture(spans: Any, seconds: float) -> None:
    from mulligan.cli._trace import draw, heading
    from mulligan.trace_view.span import from_sdk_spans

    shown = from_sdk_spans(spans)
    trace_id = f"{spans[0].context.trace_id:032x}" if spans else "(none)"
    _terminal.out.print(f"\n{heading(trace_id, shown, 'from this process')}", markup=False, soft_wrap=True)
    draw(_terminal.out, shown)
    _terminal.err.print()
    say(f"{seconds:.1f} s. Next: an agent of your own, as the README shows, or `mulligan --help`.")
