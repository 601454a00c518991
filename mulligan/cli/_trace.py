"""A trace as text for the terminal: the tree of spans on the left, a time line on the right."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from mulligan.cli._steps import counted, short
from mulligan.durations import duration_text
from mulligan.observe import semconv
from mulligan.trace_view.trace_span import TraceSpan
from mulligan.trace_view.tree import Line, build_tree, lines

LONGEST_NAME = 40
DURATION = 10
"""The width of a duration in columns."""
BAR, NARROWEST_BAR = 40, 10
"""The maximum width of the time line in columns, and the minimum: a narrower one is left out."""


def draw(console: Console, spans: Sequence[TraceSpan], *, whole: bool = False) -> None:
    """Draw a trace, as wide as the terminal; without a terminal the width is not limited. `whole`: show all spans."""
    now = time.time()
    drawn = lines(build_tree(spans), whole=whole)
    labels = [_label(line) for line in drawn]
    widest = max((label.cell_len for label in labels), default=0)
    bar = BAR
    if console.is_terminal:
        # The tree comes first: the time line takes the remaining columns.
        bar = min(BAR, console.width - DURATION - min(widest, console.width * 2 // 3) - 2)
        bar = bar if bar >= NARROWEST_BAR else 0
        widest = min(widest, console.width - DURATION - bar - 2)
    begin = min((line.start for line in drawn), default=0.0)
    end = max((now if line.end is None else line.end for line in drawn), default=0.0)
    for line, label in zip(drawn, labels, strict=True):
        label.truncate(widest, overflow="ellipsis", pad=True)
        label.append(f"{_duration_text(line, now):>{DURATION}}", style="dim")
        if bar:
            label.append("  ")
            label.append(_bar(line, begin, end, now, bar), style=_colour(line))
        label.rstrip()
        console.print(label, soft_wrap=True)
        for text in _texts(line):
            below = Text.assemble((line.below, "dim"), (text, "dim"))
            if console.is_terminal:
                below.truncate(console.width, overflow="ellipsis")
            console.print(below, soft_wrap=True)


def heading(trace_id: str, spans: Sequence[TraceSpan], origin: str) -> str:
    """The line above the drawing: the trace id, the duration, and the numbers of spans and errors."""
    roots = build_tree(spans)
    if not roots:
        return f"trace {trace_id}  no spans: {origin}"
    ends = [root.end for root in roots]
    seconds = max(time.time() if end is None else end for end in ends) - min(root.start for root in roots)
    errors = sum(root.errors for root in roots)
    failed = f", {counted(errors, 'error')}" if errors else ""
    return f"trace {trace_id}  {duration_text(seconds)}, {counted(len(spans), 'span')}{failed}, {origin}"


def _label(line: Line) -> Text:
    label = Text(line.prefix)
    if line.node is None:
        return label.append(f"… {line.folded}", style="dim")
    span, attributes = line.node.span, line.node.span.attributes
    label.append(short(span.name, LONGEST_NAME), style="bold")
    if span.name == semconv.TOOL_CALL:
        label.append(f" {short(str(attributes.get(semconv.AI_NAME, '')), LONGEST_NAME)}", style="cyan")
    if compacted := attributes.get(semconv.COMPACTION):
        label.append(f"  compacts {counted(compacted, 'message')}", style="yellow")
    if span.is_error:
        label.append(f"  ERROR {short(str(attributes.get(semconv.ERROR_TYPE, '')), LONGEST_NAME)}", style="red bold")
    if span.is_error and attributes.get(semconv.RECOVERED):
        label.append("  recovered", style="green")
    if repairs := attributes.get(semconv.REPAIRS):
        label.append(f"  repaired by {short(', '.join(map(str, repairs)), LONGEST_NAME)}", style="yellow")
    attempt = attributes.get(semconv.ATTEMPT)
    if isinstance(attempt, int) and attempt > 1:
        label.append(f"  attempt {attempt}", style="yellow")
    if span.name == semconv.AGENT_FINISH and semconv.STATUS in attributes:
        label.append(f"  {short(str(attributes[semconv.STATUS]))}", style="red" if span.is_error else "green")
    if span.end is None:
        label.append("  running", style="cyan")
    if line.folded:
        label.append(f"  … {line.folded}", style="dim")
    return label


def _texts(line: Line) -> list[str]:
    """The lines below a span: its error, or what a running call waits for; and the errors of its earlier attempts."""
    if line.node is None:
        return []
    earlier = [f"attempt {span.attempt}: {_text(span)}" for span in line.node.earlier]
    span = line.node.span
    text = _text(span) if span.is_error or span.end is None else ""
    return [*earlier, *([text] if text and text != span.attributes.get(semconv.ERROR_TYPE) else [])]


def _text(span: TraceSpan) -> str:
    """What a span says of its error, or of what it waits for."""
    return short(str(span.attributes.get(semconv.AI_ERROR) or span.message))


def _duration_text(line: Line, now: float) -> str:
    if line.node is not None and line.node.span.name == semconv.AGENT_FINISH:
        return ""
    return duration_text((now if line.end is None else line.end) - line.start)


def _bar(line: Line, begin: float, end: float, now: float, width: int) -> str:
    """The bar of a span on the time line: at least one column wide, with an arrow if the span is still running."""
    scale = width / (end - begin) if end > begin else 0.0
    first = min(width - 1, int((line.start - begin) * scale))
    last = min(width, max(first + 1, round(((now if line.end is None else line.end) - begin) * scale)))
    length = last - first
    return " " * first + ("━" * length if line.end is not None else "━" * (length - 1) + "▶")


def _colour(line: Line) -> str:
    if line.node is None:
        return "dim"
    span = line.node.span
    if span.is_error:
        return "red"
    return "cyan" if line.end is None else "dim" if line.node.children else "green"
