"""A trace as a tree, from the spans that this process made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from rich.text import Text
from rich.tree import Tree

from mulligan import semconv
from mulligan.cli._steps import short


def trace_tree(spans: Iterable[ReadableSpan]) -> Tree:
    """The spans of one run below its root."""
    ordered = sorted(spans, key=lambda span: span.start_time or 0)
    here = {span.context.span_id for span in ordered if span.context}
    below: dict[int, list[ReadableSpan]] = {}
    roots = []
    for span in ordered:
        if span.parent is not None and span.parent.span_id in here:
            below.setdefault(span.parent.span_id, []).append(span)
        else:
            roots.append(span)
    tree = Tree(Text("trace " + (f"{roots[0].context.trace_id:032x}" if roots and roots[0].context else "(none)")))
    for root in roots:
        _grow(tree, root, below)
    return tree


def _grow(tree: Tree, span: ReadableSpan, below: dict[int, list[ReadableSpan]]) -> None:
    branch = tree.add(_label(span))
    for child in below.get(span.context.span_id if span.context else 0, []):
        _grow(branch, child, below)


def _label(span: ReadableSpan) -> Text:
    attributes: dict[str, Any] = dict(span.attributes or {})
    label = Text(span.name, style="bold")
    if span.name == semconv.TOOL_CALL:
        label.append(f" {short(str(attributes.get('ai.toolCall.name', '')), 40)}", style="cyan")
    if not span.status.is_ok:
        label.append(f"  ERROR {attributes.get(semconv.ERROR_TYPE, '')}", style="red bold")
        if attributes.get(semconv.RECOVERED):
            label.append("  recovered", style="green")
    if attributes.get(semconv.REPAIRS):
        label.append(f"  repaired by {', '.join(attributes[semconv.REPAIRS])}", style="yellow")
    if span.name == semconv.AGENT_FINISH:
        label.append(f"  {attributes.get('mulligan.status')}", style="green")
    elif span.parent is not None and span.start_time and span.end_time:
        label.append(f"  {(span.end_time - span.start_time) / 1e6:.1f} ms", style="dim")
    return label
