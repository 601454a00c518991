"""What a one-line fault may be: for each expression of a file, the texts that could stand in its place."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

FLIPPED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
LARGEST_NUMBER = 9
"""±1 of a larger number is not a fault: sizes and times are chosen, not derived."""
WORD = re.compile(r"[a-z][a-z0-9_.-]*")
"""What a string is that programs read. A sentence has a space or a capital letter."""
NOT_FOR_BEHAVIOUR = {"TypeVar", "NewType", "NamedTuple", "getLogger", "deprecated", "cast", "warn"}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "log"}


@dataclass(frozen=True)
class Change:
    """An expression on one line of a file, and what stands there instead."""

    kind: str
    line: int
    begin: int
    end: int
    """Columns, in bytes of UTF-8, as ast counts them."""
    text: str
    function: str
    """The qualified name of the function or class around it; empty at the top of a file."""
    at_import: bool
    """Whether it is evaluated when the file is imported."""


def changes(source: str) -> list[Change]:
    """All that a file offers, in the order of its text."""
    finder = _Finder()
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda each: (each.line, each.begin, each.end, each.kind, each.text))


class _Finder(ast.NodeVisitor):
    """Goes through a file, but not through what is unreachable by design: types, texts for people, logs, assertions."""

    def __init__(self) -> None:
        self.found: list[Change] = []
        self._names: list[str] = []
        self._in_function = 0

    def _add(self, kind: str, node: ast.expr, text: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        if node.lineno == node.end_lineno:
            place = node.lineno, node.col_offset, node.end_col_offset
            self.found.append(Change(kind, *place, text, ".".join(self._names), not self._in_function))

    # Where they look

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in ("__repr__", "__str__") or any("overload" in ast.unparse(each) for each in node.decorator_list):
            return
        self._names.append(node.name)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._in_function += 1
        for statement in node.body:
            self.visit(statement)
        self._in_function -= 1
        self._names.pop()

    visit_FunctionDef = _function  # noqa: N815
    visit_AsyncFunctionDef = _function  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._in_function += 1
        self.visit(node.body)
        self._in_function -= 1

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._names.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and "TypeAlias" not in ast.unparse(node.annotation):
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(isinstance(each, ast.Name) and each.id.startswith("__") for each in node.targets):
            self.visit(node.value)
            for each in node.targets:
                self.visit(each)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not (isinstance(node.value, ast.Name) and node.value.id in ("Literal", "Annotated", "Callable")):
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion that holds cannot be broken by less than what it asserts."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Python 3.11 does not know where its parts stand."""

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self.visit(node.guard)
        for statement in node.body:
            self.visit(statement)

    # What they find

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test) or "__main__" in ast.unparse(node.test):
            return
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for each in node.ifs:
            self._condition(each)
        self.generic_visit(node)

    def _condition(self, node: ast.expr) -> None:
        if not isinstance(node, (ast.Compare, ast.UnaryOp, ast.Constant)):  # they have faults of their own
            self._add("condition", node, f"not ({ast.unparse(node)})")

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, operator in enumerate(node.ops):
            for other in FLIPPED[type(operator)]:
                changed = [*node.ops]
                changed[index] = other()
                self._add(
                    "comparison", node, ast.unparse(ast.Compare(node.left, changed, node.comparators))
                )  # fmt: skip
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add("and/or", node, ast.unparse(ast.BoolOp(other, node.values)))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("not", node, ast.unparse(node.operand))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("bool", node, repr(not value))
        elif isinstance(value, int) and value <= LARGEST_NUMBER:
            self._add("number", node, repr(value + 1))
            self._add("number", node, repr(value - 1))
        elif isinstance(value, str) and WORD.fullmatch(value):
            self._add("string", node, repr(f"{value}_"))

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            return
        if isinstance(value, (ast.Compare, ast.BoolOp)):
            self._add("return", value, f"not ({ast.unparse(value)})")
        elif not isinstance(value, (ast.Constant, ast.UnaryOp)):
            self._add("return", value, "None")
        self.visit(value)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value
        called = value.value if isinstance(value, ast.Await) else value
        if isinstance(called, ast.Call):
            if _is_log(called):
                return
            self._add("call dropped", value, "None")
        if not isinstance(value, ast.Constant):  # a docstring
            self.visit(value)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in NOT_FOR_BEHAVIOUR:
            return
        if isinstance(node.func, ast.Name) and name in SWAPPED_CALLS:
            other = ast.Call(ast.Name(SWAPPED_CALLS[name]), node.args, node.keywords)
            self._add("swapped", node, ast.unparse(other))
        self.generic_visit(node)


def _is_log(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and (
        call.func.attr in LOG_METHODS and "log" in ast.unparse(call.func.value).lower()
    )
