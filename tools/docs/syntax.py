"""The syntax of a file: its functions, the calls of each, and which values reach a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

Block = tuple[int, ...]
"""Where a statement is: the numbers of the blocks around it, the outermost first."""

_KEPT = (ast.Call, ast.Return, ast.Yield)
_WITHOUT_CALLS = (
    ast.FunctionDef, ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.alias, ast.arg,
)  # fmt: skip
"""What nothing is read from, or what is a body of its own."""

_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Place:
    """Where a node is."""

    block: Block = ()
    line: int = 0


@dataclass(frozen=True)
class Value:
    """What a name gets, and where; ``ends``: its block is left without reaching what follows."""

    node: ast.expr
    place: Place
    ends: bool


@dataclass
class Body:
    """A function (``None``: a module), its calls and results, and the values of its names."""

    function: ast.FunctionDef | None
    nodes: list[tuple[ast.Call | ast.Return | ast.Yield, Place]] = field(default_factory=list)
    values: dict[str, list[Value]] = field(default_factory=dict)

    @property
    def parameters(self) -> list[str]:
        """The names of its parameters."""
        if self.function is None:
            return []
        arguments = self.function.args
        return [
            argument.arg
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        ]

    def reaching(self, name: str, place: Place) -> list[Value]:
        """The values that the name may have there: the last one that is set on every way, and those
        that are set on some way after it."""
        before = [
            assigned for assigned in self.values.get(name, ()) if assigned.place.line < place.line
        ]
        certain = [
            assigned
            for assigned in before
            if assigned.place.block == place.block[: len(assigned.place.block)]
        ]
        if not certain:
            return [assigned for assigned in before if not assigned.ends]
        last = certain[-1]
        after = [
            assigned
            for assigned in before
            if assigned.place.line > last.place.line and not assigned.ends
        ]
        return [last, *(assigned for assigned in after if assigned.place.block != last.place.block)]


@cache
def bodies(path: Path) -> tuple[Body, ...]:
    """The functions of a file, and the file itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside: list[Body] = []
    pending: list[tuple[ast.FunctionDef | None, Sequence[ast.stmt]]] = [(None, tree.body)]
    while pending:
        function, statements = pending.pop()
        body = Body(function)
        inside.append(body)
        for inner in _visit(body, statements, (), iter(range(1, 10**6))):
            pending.append((inner, inner.body))
    return tuple(inside)


def _visit(
    body: Body, statements: Sequence[ast.stmt], block: Block, numbers: Iterator[int]
) -> Iterator[ast.FunctionDef]:
    """Add what the statements have to ``body``; functions among them are bodies of their own."""
    ends = isinstance(statements[-1], _ENDS)
    for statement in statements:
        if isinstance(statement, ast.FunctionDef):
            yield statement
            continue
        inner = [block for block in _blocks(statement) if block]
        below = {id(child) for part in inner for child in part}
        pending: list[ast.AST] = [statement]
        while pending:
            node = pending.pop()
            if isinstance(node, _KEPT):
                body.nodes.append((node, Place(block, statement.lineno)))
            for name, value in _assigned(node):
                place = Place(block, statement.lineno)
                body.values.setdefault(name, []).append(Value(value, place, ends))
            pending += [
                child
                for child in ast.iter_child_nodes(node)
                if not isinstance(child, _WITHOUT_CALLS) and id(child) not in below
            ]
        for part in inner:
            # The methods of a class are functions of the file.
            deeper = block if isinstance(statement, ast.ClassDef) else (*block, next(numbers))
            yield from _visit(body, part, deeper, numbers)


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    blocks += [handler.body for handler in getattr(statement, "handlers", [])]
    blocks += [case.body for case in getattr(statement, "cases", [])]
    return blocks


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from _targets(node.target, node.value)
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        before = ast.Name(node.target.id)
        yield node.target.id, ast.BinOp(before, node.op, node.value)


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        for at, element in enumerate(target.elts):
            if isinstance(value, ast.Tuple) and at < len(value.elts):
                yield from _targets(element, value.elts[at])
            else:
                yield from _targets(element, ast.Subscript(value, ast.Constant(at)))
