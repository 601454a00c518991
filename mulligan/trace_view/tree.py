"""Builds the tree of a trace and the lines that show it: ten thousand steps fit on a page, with every error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mulligan.observe import semconv
from mulligan.trace_view.trace_span import TraceSpan

MAX_UNFOLDED_SPANS = 60
"""A trace of so many spans is shown without folding."""
EDGE = 3
"""How many steps, or other spans, are shown before and after folded ones."""
MAX_ERRORS = 200
"""How many errors are shown among siblings: the first ones."""
MAX_GROUPS = 20
"""If there are more `agent.steps` spans, only the first and the last ones are shown."""
MAX_DEPTH = 40
"""How many levels of a tree are shown."""


@dataclass
class Node:
    """A span and its descendants. `start` and `end` span all of them; `end` is None while one runs.

    `earlier`: the attempts of a call before the one that is the span, so that each call is in the tree once.
    """

    span: TraceSpan
    earlier: list[TraceSpan] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    start: float = 0.0
    end: float | None = None
    spans: int = 1
    errors: int = 0
    is_running: bool = False


@dataclass(frozen=True)
class Line:
    """A line of the tree: a span, or folded spans.

    `prefix`: the tree's branches left of it; `below`: those left of texts below it. `folded`: how much is folded here.
    """

    prefix: str
    below: str
    start: float
    end: float | None
    node: Node | None = None
    folded: str = ""


def build_tree(spans: Iterable[TraceSpan]) -> list[Node]:
    """The roots, in the order of their start. A span whose parent is not among the spans is a root."""
    attempts: dict[tuple[object, ...], list[TraceSpan]] = {}
    for span in {span.span_id: span for span in spans}.values():
        attempts.setdefault(_subject(span), []).append(span)
    nodes: dict[str, Node] = {}
    for of_call in attempts.values():
        *earlier, last = sorted(of_call, key=lambda span: (span.attempt, span.start))
        nodes |= dict.fromkeys((span.span_id for span in of_call), Node(last, earlier))
    roots: list[Node] = []
    unique = {id(node): node for node in nodes.values()}.values()
    for node in sorted(unique, key=lambda node: min(span.start for span in (*node.earlier, node.span))):
        parent = nodes.get(node.span.parent_id)
        (roots if parent is None or parent is node else parent.children).append(node)
    for root in roots:
        _add_totals(root)
    return roots


def _subject(span: TraceSpan) -> tuple[object, ...]:
    """What the spans of all attempts of a tool call have in common; another span has nothing in common with any."""
    call_id = span.attributes.get(semconv.AI_ID) if span.name == semconv.TOOL_CALL else None
    return (span.span_id,) if call_id is None else (span.parent_id, span.step, call_id)


def lines(roots: Sequence[Node], *, whole: bool = False) -> list[Line]:
    """The lines of a tree. Consecutive steps without errors are folded, unless the trace is small, or `whole` is set."""
    drawn: list[Line] = []
    _draw(roots, "", drawn, folds=not whole and sum(root.spans for root in roots) > MAX_UNFOLDED_SPANS)
    return drawn


def _add_totals(root: Node) -> None:
    """Set times and counts, from the leaves up. No recursion: a trace may be deeper than Python's stack."""
    parents_first, remaining = [], [root]
    while remaining:
        node = remaining.pop()
        parents_first.append(node)
        remaining += node.children
    for node in reversed(parents_first):
        span = node.span
        node.is_running = span.end is None or any(child.is_running for child in node.children)
        own = [span, *node.earlier]
        node.start = min([*(each.start for each in own), *(child.start for child in node.children)])
        ends = [span.end, *(child.end for child in node.children)]
        node.end = None if node.is_running else max(end for end in ends if end is not None)
        node.spans = len(own) + sum(child.spans for child in node.children)
        node.errors = sum(each.is_error for each in own) + sum(child.errors for child in node.children)


def _draw(siblings: Sequence[Node], prefix: str, into: list[Line], *, folds: bool) -> None:
    items: list[list[Node] | Node] = list(siblings)
    if folds:
        items = _folded(_by_step(siblings))
    for index, item in enumerate(items):
        is_last = index == len(items) - 1
        here, below = (prefix + "└── ", prefix + "    ") if is_last else (prefix + "├── ", prefix + "│   ")
        if isinstance(item, list):
            ends = [node.end for node in item if node.end is not None]
            into.append(Line(here, below, item[0].start, max(ends, default=None), folded=_counts(item)))
            continue
        is_quiet = folds and item.span.name == semconv.AGENT_STEPS and not item.errors and not item.is_running
        is_folded = is_quiet or len(below) > 4 * MAX_DEPTH
        text = _counts(item.children) if is_folded and item.children else ""
        under = below + ("│ " if item.children and not is_folded else "  ")
        into.append(Line(here, under, item.start, item.end, item, text))
        if not is_folded:
            _draw(item.children, below, into, folds=folds)


def _by_step(siblings: Sequence[Node]) -> list[list[Node]]:
    """Siblings in groups: a group for each step, and one for each other span."""
    groups: list[list[Node]] = []
    for node in siblings:
        step = node.span.step
        if groups and step is not None and groups[-1][-1].span.step == step:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _folded(groups: Sequence[list[Node]]) -> list[list[Node] | Node]:
    """The nodes that are shown, and between them lists of folded ones."""
    errors = 0
    step_groups = sum(group[0].span.name == semconv.AGENT_STEPS for group in groups)
    folded: list[list[Node] | Node] = []
    for index, group in enumerate(groups):
        failed = sum(node.errors for node in group)
        is_notable = (
            (failed and errors < MAX_ERRORS)
            or any(node.is_running for node in group)
            or (group[0].span.name == semconv.AGENT_STEPS and step_groups <= MAX_GROUPS)
        )
        errors += failed
        if is_notable or index < EDGE or index >= len(groups) - EDGE:
            folded += group
        elif folded and isinstance(folded[-1], list):
            folded[-1] += group
        else:
            folded.append(list(group))
    return [item[0] if isinstance(item, list) and len(item) == 1 else item for item in folded]


def _counts(nodes: Sequence[Node]) -> str:
    """How much is folded, such as "steps 4 to 99, 192 spans"."""
    steps: set[tuple[str, int]] = set()
    remaining = list(nodes)
    while remaining:
        node = remaining.pop()
        if node.span.step is not None and node.span.name != semconv.AGENT_STEPS:
            steps.add((node.span.parent_id, node.span.step))
        remaining += node.children
    spans, errors = sum(node.spans for node in nodes), sum(node.errors for node in nodes)
    numbers = ((len(steps), "step"), (spans, "span"), (errors, "error"))
    counts = [f"{number:,} {what}{'s' * (number != 1)}" for number, what in numbers if number]
    if len(steps) > 1 and len({parent for parent, _ in steps}) == 1:
        counts[0] = f"steps {min(step for _, step in steps)} to {max(step for _, step in steps)}"
    return ", ".join(counts)
