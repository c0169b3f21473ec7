"""Finds the small faults that a source file can have: an inverted comparison, a moved constant.

Texts (docstrings, messages, logs), annotations and decorators stay unchanged.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

TURNED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
OTHER_NAME = {"min": "max", "max": "min"}


@dataclass(frozen=True)
class Fault:
    """An expression of a file, and its replacement."""

    file: str
    line: int
    text: str
    """The line of the source, without its indentation."""
    before: str
    after: str
    start: int
    end: int

    @property
    def change(self) -> str:
        return f"{self.before} -> {self.after}"

    def put_into(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def faults_of(root: Path, file: str) -> list[Fault]:
    """Return all faults that a file of the checkout can have, from its first line to its last."""
    source = (root / file).read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    faults = []
    for node, changed in _changes(ast.parse(source)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = lines[node.lineno - 1].decode().strip()
        before = " ".join(source[start:end].decode().split())
        after = ast.unparse(changed)
        if isinstance(changed, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.BinOp):
            after = f"({after})"
        faults.append(Fault(file, node.lineno, text, before, after, start, end))
    return sorted(faults, key=lambda fault: (fault.start, fault.end, fault.after))


def chosen(faults: list[Fault], count: int, seed: int) -> list[Fault]:
    """Return `count` of a file's faults, the same for the same seed."""
    if count >= len(faults):
        return faults
    places = random.Random(seed).sample(range(len(faults)), count)
    return [faults[place] for place in sorted(places)]


Change = tuple[ast.expr | ast.stmt, ast.AST]
"""A node of the source, and its replacement."""


def _changes(node: ast.AST, returns_bool: bool = False) -> Iterator[Change]:
    """Yield the faults of a node and of all nodes below it."""
    if _is_text(node):
        return
    if isinstance(node, ast.FunctionDef):
        returns_bool = isinstance(node.returns, ast.Name) and node.returns.id == "bool"
    yield from _own_changes(node, returns_bool)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child, returns_bool)


def _is_text(node: ast.AST) -> bool:
    """Return whether a node serves readers or the type checker only."""
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return True
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).startswith(("log.", "warnings."))


def _own_changes(node: ast.AST, returns_bool: bool) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                for turned in TURNED[type(operator)]:
                    changed = deepcopy(node)
                    changed.ops[place] = turned()
                    yield node, changed
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(number)):
            yield node, ast.Constant(number + 1)
        case ast.Constant(value=float(number)):
            yield node, ast.Constant(2 * number or 1.0)
        case ast.Name(id="min" | "max"):
            yield node, ast.Name(OTHER_NAME[node.id])
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp() if type(node.op) in OPPOSITE:
            if not any(_joins_texts(child) for child in ast.iter_child_nodes(node)):
                changed_operator = deepcopy(node)
                changed_operator.op = OPPOSITE[type(node.op)]()  # type: ignore[assignment]
                yield node, changed_operator
        case ast.UnaryOp(op=ast.Not()):
            yield node, node.operand
        case ast.Return(value=ast.expr() as value) if returns_bool and _is_plain(value):
            yield value, _negated(value)
    for condition in _conditions(node):
        if _is_plain(condition):
            yield condition, _negated(condition)


def _conditions(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            return [node.test]
        case ast.comprehension():
            return node.ifs
        case ast.BoolOp():
            return node.values
    return []


def _is_plain(condition: ast.expr) -> bool:
    """Return whether a condition has no operator that is inverted by itself."""
    return not isinstance(condition, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant)


def _negated(condition: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), deepcopy(condition))


def _joins_texts(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
