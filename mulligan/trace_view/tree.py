"""Spans as a tree, and its lines: a trace of ten thousand steps is a page, with every error on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mulligan.observe import semconv
from mulligan.trace_view.span import TraceSpan

__all__ = ["Line", "Node", "grow", "lines"]

WHOLE = 60
"""Spans up to which a trace is shown whole."""
EDGE = 3
"""Steps, or other spans, that are shown at either end of what is folded."""
MOST_ERRORS = 200
"""Errors among siblings that are all shown; of more, the first ones."""
MOST_HUNDREDS = 20
"""Spans of a hundred steps that are all shown; of more, just those at either end."""
DEEPEST = 40
"""Levels of a tree that are shown."""


@dataclass
class Node:
    """A span with those below it; `start` and `end` are those of all of them. `end` is None while one runs."""

    span: TraceSpan
    children: list[Node] = field(default_factory=list)
    start: float = 0.0
    end: float | None = None
    spans: int = 1
    errors: int = 0
    is_running: bool = False


@dataclass(frozen=True)
class Line:
    """A line of the drawing: a span, or what is folded. `prefix` is the tree to the left of it, `below` that of texts."""

    prefix: str
    below: str
    start: float
    end: float | None
    node: Node | None = None
    folded: str = ""


def grow(spans: Iterable[TraceSpan]) -> list[Node]:
    """The roots, in the order of their start. A span whose parent is not here is one."""
    nodes = {span.span_id: Node(span) for span in spans}
    roots: list[Node] = []
    for node in sorted(nodes.values(), key=lambda node: node.span.start):
        parent = nodes.get(node.span.parent_id)
        (roots if parent is None or parent is node else parent.children).append(node)
    for root in roots:
        _sum_up(root)
    return roots


def lines(roots: Sequence[Node], *, whole: bool = False) -> list[Line]:
    """The lines of a tree. Stretches of ordinary steps are folded, unless the trace is small or `whole` is asked for."""
    found: list[Line] = []
    _draw(roots, "", found, folds=not whole and sum(root.spans for root in roots) > WHOLE)
    return found


def _sum_up(root: Node) -> None:
    """Extents and numbers, from the leaves up. No recursion: a trace may be deeper than Python's stack."""
    order, left = [], [root]
    while left:
        node = left.pop()
        order.append(node)
        left += node.children
    for node in reversed(order):
        span = node.span
        node.is_running = span.end is None or any(child.is_running for child in node.children)
        node.start = min([span.start, *(child.start for child in node.children)])
        ends = [span.end, *(child.end for child in node.children)]
        node.end = None if node.is_running else max(end for end in ends if end is not None)
        node.spans = 1 + sum(child.spans for child in node.children)
        node.errors = span.is_error + sum(child.errors for child in node.children)


def _draw(siblings: Sequence[Node], prefix: str, into: list[Line], *, folds: bool) -> None:
    shown: list[list[Node] | Node] = list(siblings)
    if folds:
        shown = _folded(_by_step(siblings))
    for index, one in enumerate(shown):
        is_last = index == len(shown) - 1
        here, below = (prefix + "└── ", prefix + "    ") if is_last else (prefix + "├── ", prefix + "│   ")
        if isinstance(one, list):
            ends = [node.end for node in one if node.end is not None]
            into.append(Line(here, below, one[0].start, max(ends, default=None), folded=_counts(one)))
            continue
        is_quiet = folds and one.span.name == semconv.AGENT_STEPS and not one.errors and not one.is_running
        is_folded = is_quiet or len(below) > 4 * DEEPEST
        text = f"{_counts(one.children)}" if is_folded and one.children else ""
        under = below + ("│ " if one.children and not is_folded else "  ")
        into.append(Line(here, under, one.start, one.end, one, text))
        if not is_folded:
            _draw(one.children, below, into, folds=folds)


def _by_step(siblings: Sequence[Node]) -> list[list[Node]]:
    """Siblings in groups: those of one step together, others alone."""
    groups: list[list[Node]] = []
    for node in siblings:
        step = node.span.step
        if groups and step is not None and groups[-1][-1].span.step == step:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _folded(groups: Sequence[list[Node]]) -> list[list[Node] | Node]:
    """The nodes to show, and between them lists of those that are folded."""
    errors = 0
    hundreds = sum(group[0].span.name == semconv.AGENT_STEPS for group in groups)
    shown: list[list[Node] | Node] = []
    for index, group in enumerate(groups):
        failed = sum(node.errors for node in group)
        is_notable = (
            (failed and errors < MOST_ERRORS)
            or any(node.is_running for node in group)
            or (group[0].span.name == semconv.AGENT_STEPS and hundreds <= MOST_HUNDREDS)
        )
        errors += failed
        if is_notable or index < EDGE or index >= len(groups) - EDGE:
            shown += group
        elif shown and isinstance(shown[-1], list):
            shown[-1] += group
        else:
            shown.append(list(group))
    return [one[0] if isinstance(one, list) and len(one) == 1 else one for one in shown]


def _counts(nodes: Sequence[Node]) -> str:
    """How much is folded: "steps 4 to 99, 192 spans"."""
    steps: set[tuple[str, int]] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node.span.step is not None and node.span.name != semconv.AGENT_STEPS:
            steps.add((node.span.parent_id, node.span.step))
        left += node.children
    spans, errors = sum(node.spans for node in nodes), sum(node.errors for node in nodes)
    numbers = ((len(steps), "step"), (spans, "span"), (errors, "error"))
    said = [f"{number:,} {what}{'s' * (number != 1)}" for number, what in numbers if number]
    if len(steps) > 1 and len({parent for parent, _ in steps}) == 1:
        said[0] = f"steps {min(step for _, step in steps)} to {max(step for _, step in steps)}"
    return ", ".join(said)
