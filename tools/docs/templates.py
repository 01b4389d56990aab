"""Reads the texts that the code composes as templates: ``f"{gpu} has no kernel"`` is *gpu* has no
kernel.

A name becomes the values that reach it, a call the texts that the called function returns, and what
only a running program knows its own name, between ``OPEN`` and ``CLOSE``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import islice, product
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import peagle
from peagle.errors import Fix, nearest
from peagle.render.requests import plan_arguments
from tools.docs.syntax import Body, Place, bodies

PACKAGE = Path(peagle.__file__).parent
OPEN, CLOSE = "\x01", "\x02"

_MOST = 6
"""More alternatives of one text are not distinguished."""

_DEEPEST = 5

_OF_TEXTS = ("strip", "rstrip", "lstrip", "lower", "removesuffix", "removeprefix")
"""Methods that change a text little."""


@dataclass(frozen=True)
class Text:
    """A text with placeholders; ``command`` is an argv, each word as a text."""

    sentence: str
    command: tuple[str, ...] = ()


_WORDS = {
    "BASES": "head", "SAFE FORMATS": "safe formats", "SHARES": "share", "c": "value",
    "noun": "instances", "number of encode": "size", "rates": "number", "sentence": "another fix",
    "str": "values", "strerror": "reason", "strip": "value",
}  # fmt: skip
"""What a reader understands, for names of the code that say too little."""


_PLUS = (Text(" + "),)


@dataclass(frozen=True)
class Scope:
    """Where an expression stands; ``arguments`` are the texts of the function's parameters."""

    module: ModuleType
    body: Body
    place: Place
    arguments: Mapping[str, Sequence[Text]] = field(default_factory=dict)
    depth: int = 0

    def value(self, node: ast.expr) -> Any:
        """What a name or an attribute is in the module; ``None`` if it is not there."""
        if isinstance(node, ast.Name):
            is_local = node.id in self.body.parameters or node.id in self.body.values
            local = is_local and self.body.function is not None
            return None if local else getattr(self.module, node.id, None)
        if isinstance(node, ast.Attribute) and (of := self.value(node.value)) is not None:
            return getattr(of, node.attr, None)
        return None


def module_of(path: Path) -> ModuleType:
    """The module of a file of the toolkit."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def texts(node: ast.expr | None, scope: Scope) -> list[Text]:
    """What the expression may be, at most a few texts; none for an empty one."""
    if node is None or scope.depth > _DEEPEST:
        return []
    shown = [text for text in _texts(node, scope) if text.sentence or text.command]
    return list(dict.fromkeys(shown))[:_MOST]


def _texts(node: ast.expr, scope: Scope) -> list[Text]:
    match node:
        case ast.Constant(value=value):
            return [Text(str(value))] if value is not None else []
        case ast.JoinedStr(values=values):
            return _joined([_part(value, scope) for value in values])
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            sides = [texts(left, scope), texts(right, scope)]
            return _joined(sides if any(map(_is_text, sides)) else [sides[0], _PLUS, sides[1]])
        case ast.IfExp(body=body, orelse=orelse):
            return [*texts(body, scope), *texts(orelse, scope)]
        case ast.BoolOp(values=values):
            return [text for value in values for text in texts(value, scope)]
        case ast.Name(id=name):
            return _named(name, node, scope)
        case ast.Call():
            return _called(node, scope)
        case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int(at))):
            return _returned(call, scope, at)
    return _constant(scope.value(node)) or [_place(node)]


def _named(name: str, node: ast.expr, scope: Scope) -> list[Text]:
    if reaching := scope.body.reaching(name, scope.place):
        values = [
            text
            for value in reaching
            for text in texts(value.node, replace(scope, place=value.place, depth=scope.depth + 1))
        ]
        is_part = any(isinstance(value.node, ast.Subscript) for value in reaching)
        return values or ([_place(node)] if is_part else [])
    return list(scope.arguments.get(name, ())) or _constant(scope.value(node)) or [_place(node)]


def _constant(value: object) -> list[Text]:
    if isinstance(value, Fix):
        return [Text(value.sentence, value.command)]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [Text(str(value))] if isinstance(value, str) or is_number else []


def _part(node: ast.expr, scope: Scope) -> list[Text]:
    """A part of an f-string: a text that is composed before it, else a placeholder."""
    if not isinstance(node, ast.FormattedValue):
        return texts(node, scope)
    shown = texts(node.value, replace(scope, depth=scope.depth + 1))
    return [text for text in shown if not text.command] or [_place(node.value)]


def _joined(parts: Sequence[Sequence[Text]]) -> list[Text]:
    shown = [part or [Text("")] for part in parts]
    return [Text("".join(text.sentence for text in way)) for way in islice(product(*shown), _MOST)]


def _called(call: ast.Call, scope: Scope) -> list[Text]:
    """The texts of ``Fix(...)`` and of a function of the toolkit, else a placeholder."""
    function = scope.value(call.func)
    if function is Fix:
        sentences = texts(argument(call, 0, "sentence"), scope) or [Text("")]
        words = _words(argument(call, 1, "command"), scope)
        return [Text(sentence.sentence, words) for sentence in sentences]
    if isinstance(call.func, ast.Attribute) and call.func.attr in _OF_TEXTS:
        return texts(call.func.value, scope)
    if function is nearest:
        return [Text(f"did you mean {OPEN}name{CLOSE}?")]
    return _returned(call, scope) or [_place(call)]


def _returned(call: ast.Call, scope: Scope, at: int | None = None) -> list[Text]:
    """What the called function returns, or the part ``at`` of a tuple that it returns."""
    shown = []
    for result, inner in _results(call, scope):
        part: ast.expr | None = result
        if at is not None:
            elements = result.elts if isinstance(result, ast.Tuple) else []
            part = elements[at] if at < len(elements) else None
        shown += texts(part, inner)
    return shown


def _results(call: ast.Call, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """What a called function of the toolkit returns, with the arguments of this call."""
    function, module = scope.value(call.func), scope.module
    shift = 0
    if isinstance(function, FunctionType) and function.__module__.startswith("peagle"):
        module, name = import_module(function.__module__), function.__name__
    elif isinstance(call.func, ast.Attribute) and _is_self(call.func.value):
        name, shift = call.func.attr, 1
    else:
        return
    assert module.__file__
    for body in bodies(Path(module.__file__)):
        if body.function is None or body.function.name != name or scope.depth >= _DEEPEST:
            continue
        arguments = {}
        for position, parameter in enumerate(body.parameters[shift:]):
            shown = texts(argument(call, position, parameter), scope)
            arguments[parameter] = shown or [_place(ast.Name(parameter))]
        inner = Scope(module, body, Place(), arguments, scope.depth + 1)
        for node, place in body.nodes:
            if not isinstance(node, ast.Call) and node.value is not None:
                yield node.value, replace(inner, place=place)


def _is_text(shown: Sequence[Text]) -> bool:
    """Whether it has more than numbers and placeholders, which are added, not joined."""
    places = f"{OPEN}.*?{CLOSE}"
    return any(re.search(r"[^\d +]", re.sub(places, "", text.sentence)) for text in shown)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _words(node: ast.expr | None, scope: Scope) -> tuple[str, ...]:
    """An argv with placeholders."""
    match node:
        case ast.Tuple(elts=words) | ast.List(elts=words):
            return tuple(text for word in words for text in _word(word, scope))
        case ast.Name(id=name) if values := scope.body.reaching(name, scope.place):
            if scope.depth < _DEEPEST:
                deeper = replace(scope, place=values[0].place, depth=scope.depth + 1)
                return _words(values[0].node, deeper)
        case ast.BinOp(left=left, right=right):
            return (*_words(left, scope), *_words(right, scope))
        case ast.Call() if scope.value(node.func) is plan_arguments:
            return (f"{OPEN}pair{CLOSE}", "…")  # any of the options of a plan
        case ast.Call():
            ways = (_words(result, inner) for result, inner in _results(node, scope))
            return next(ways, (_place(node).sentence,))
        case None:
            return ()
    value = scope.value(node)
    return tuple(value) if isinstance(value, tuple | list) else (_place(node).sentence,)


def _word(node: ast.expr, scope: Scope) -> tuple[str, ...]:
    if isinstance(node, ast.Starred):
        return _words(node.value, scope)
    shown = texts(node, scope)
    return (shown[0].sentence,) if shown else ()


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """The argument of a call, by its name or its position."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    plain = [value for value in call.args if not isinstance(value, ast.Starred)]
    return plain[position] if position < len(plain) else None


def _place(node: ast.expr) -> Text:
    """What only a running program knows, by the name that the code has for it."""
    name = _name(node).strip("_").replace("_", " ")
    name = _WORDS.get(name, name)
    return Text(f"{OPEN}{name}{CLOSE}" if name else "…")


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Name(id="len"), args=[of]):
            return f"number of {_name(of)}"
        case ast.Call(args=[of, *_]) | ast.Subscript(value=of) | ast.Starred(value=of):
            return _name(of)
        case ast.Call(func=of) | ast.GeneratorExp(elt=of) | ast.ListComp(elt=of):
            return _name(of)
        case ast.BinOp(left=of) | ast.FormattedValue(value=of) | ast.IfExp(body=of):
            return _name(of)
        case ast.JoinedStr(values=values):
            return next((_name(value) for value in values if _name(value)), "")
    return ""
