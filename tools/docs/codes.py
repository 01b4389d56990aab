"""The codes of findings and errors: where the code makes them, and with which texts."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FunctionType, ModuleType

from peagle import findings
from peagle.aws.client import _ERRORS_BY_CLASS
from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog, KnownProblem
from peagle.checks import registry
from peagle.checks.registry import _KNOWN, Rule, list_rules
from peagle.errors import Fix, PeagleError
from tools.docs.markdown import says_something
from tools.docs.syntax import bodies
from tools.docs.templates import CLOSE, OPEN, PACKAGE, Scope, Text, argument, module_of, texts

LEVELS = ("error", "warning", "note")


@dataclass
class Code:
    """A code: its severities or its exit code, what causes it and what helps, and where it is."""

    levels: list[str] = field(default_factory=list)
    causes: list[Text] = field(default_factory=list)
    fixes: list[Text] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    document: str = ""

    def explain(self) -> None:
        """Take from the docstring of the code what its places do not say."""
        cause, fix = parts_of(self.document)
        if not any(map(says_something, self.causes)):
            self.causes = [cause] if cause else []
        if not any(map(says_something, self.fixes)):
            self.fixes = [fix] if fix else []

    def add(self, level: str, causes: Sequence[Text], fixes: Sequence[Text], file: Path) -> None:
        """One more place that makes it."""
        name = file.relative_to(PACKAGE).as_posix()
        self.levels += [value for value in (level,) if value and value not in self.levels]
        self.causes += [value for value in causes if value not in self.causes]
        self.fixes += [value for value in fixes if value not in self.fixes]
        self.files += [value for value in (name,) if value not in self.files]


def parts_of(document: str) -> tuple[Text | None, Text | None]:
    """The first paragraph of a docstring, and the one that begins with ``Fix: ``."""
    text = inspect.cleandoc(document).replace("``", "`")
    paragraphs = re.split(r"\n\n|\n(?=Fix: )", text)
    parts = [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph]
    fixes = [paragraph[5:].rstrip(".") for paragraph in parts if paragraph.startswith("Fix: ")]
    return Text(parts[0]) if parts else None, Text(fixes[0]) if fixes else None


@cache
def findings_found() -> dict[str, Code]:
    """The codes of findings that the toolkit itself has, sorted."""
    codes: dict[str, Code] = defaultdict(Code)
    for path, call, scope in _calls():
        _add_finding(codes, call, scope, path)
    for rule in list_rules():
        _add_rule(codes, rule)
    del codes[_KNOWN]  # whose findings have the codes of ``known_problems``
    for code in codes.values():
        code.explain()
    return dict(sorted(codes.items()))


def known_problems() -> dict[str, tuple[str, KnownProblem]]:
    """The problems of drafters in the catalogue: code -> pair and problem, sorted."""
    problems = {
        problem.code: (f"{target.short_name}+{drafter.name}", problem)
        for target in catalogue().targets.values()
        for drafter in target.drafters
        for problem in drafter.problems
    }
    return dict(sorted(problems.items()))


@cache
def errors_found() -> dict[str, Code]:
    """The codes of errors that the toolkit itself has, sorted; ``levels`` are exit codes."""
    codes: dict[str, Code] = defaultdict(Code)
    kinds: dict[str, type[PeagleError]] = {}
    for path, call, scope in _calls():
        _add_error(codes, kinds, call, scope, path)
    for classes, kind, message, fix, code in _ERRORS_BY_CLASS:
        remedy = fix if isinstance(fix, Fix) else Fix(fix)
        shown = str(vars(classes[0])["fmt"]) if message == "{error}" else message
        cause = shown.replace("{", OPEN).replace("}", CLOSE)
        _add_text(codes, code, kind, cause, Text(remedy.sentence, remedy.command), "aws/client.py")
    for kind in _classes(PeagleError):
        kinds.setdefault(kind.code, kind)
    for code, kind in kinds.items():
        _of_class(codes[code], kind)
    codes.pop(PeagleError.code, None)
    same = findings_found()
    for code, entry in codes.items():
        entry.explain()
        if code in same:  # such as a finding that ends another command as well
            entry.causes, entry.fixes = (
                entry.causes or same[code].causes,
                entry.fixes or same[code].fixes,
            )
    return dict(sorted(codes.items()))


def _classes(of: type[PeagleError]) -> list[type[PeagleError]]:
    """The classes of errors whose code is their own."""
    below = [kind for sub in of.__subclasses__() for kind in (sub, *_classes(sub))]
    return [kind for kind in below if kind.__module__.startswith("peagle") and kind.code != of.code]


def _add_text(
    codes: dict[str, Code], code: str, kind: type[PeagleError], cause: str, fix: Text, file: str
) -> None:
    codes[code].add(str(kind.exit_code), [Text(cause)], [fix], PACKAGE / file)


def _of_class(code: Code, kind: type[PeagleError]) -> None:
    """The cause is the docstring of the class, and the fix its paragraph of that name, or those of
    its places."""
    cause, fix = parts_of(kind.__doc__ or "")
    code.levels = code.levels or [str(kind.exit_code)]
    code.causes = [cause] if cause else code.causes
    code.fixes = [fix] if fix else code.fixes
    code.files = code.files or [Path(inspect.getfile(kind)).relative_to(PACKAGE).as_posix()]


def incomplete(codes: Mapping[str, Code]) -> list[str]:
    """The codes that lack a severity, a cause or a fix."""
    return [
        code
        for code, entry in codes.items()
        if not entry.levels
        or not any(map(says_something, entry.causes))
        or not any(map(says_something, entry.fixes))
    ]


@cache
def catalogue() -> Catalog:
    """The catalogue that ships."""
    return load_catalog()


_IMPORTED = (
    "peagle.errors import",
    "findings import",
    "import findings",
    "registry import",
    "errors import",
)
"""A file without any of these makes neither findings nor errors; some take long to import."""


@cache
def _calls() -> tuple[tuple[Path, ast.Call, Scope], ...]:
    calls = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name == "__main__.py" or not any(name in text for name in _IMPORTED):
            continue
        module = module_of(path)
        for body in bodies(path):
            calls += [
                (path, node, Scope(module, body, place))
                for node, place in body.nodes
                if isinstance(node, ast.Call)
            ]
    return tuple(calls)


@cache
def _callers() -> Mapping[FunctionType, Sequence[tuple[ast.Call, Scope]]]:
    """The calls of each function."""
    callers: dict[FunctionType, list[tuple[ast.Call, Scope]]] = defaultdict(list)
    for _, call, scope in _calls():
        function = scope.value(call.func)
        if isinstance(function, FunctionType) and function.__module__.startswith("peagle"):
            callers[function].append((call, scope))
    return callers


def _said(node: ast.expr | None, scope: Scope) -> list[Text]:
    """The texts of a message or a fix; of a parameter, what the callers give."""
    function = scope.body.function
    if function is None or not isinstance(node, ast.Name) or not _is_parameter(node, scope):
        return texts(node, scope)
    at = scope.body.parameters.index(node.id)
    called = getattr(scope.module, function.name, None)
    return [
        text
        for call, caller in (_callers().get(called, ()) if called else ())
        for text in texts(argument(call, at, node.id), caller)
    ] or texts(node, scope)


def _is_parameter(node: ast.expr | None, scope: Scope) -> bool:
    return isinstance(node, ast.Name) and node.id in scope.body.parameters


def _add_finding(codes: dict[str, Code], call: ast.Call, scope: Scope, path: Path) -> None:
    """Add the finding that the call makes, if it makes one."""
    for maker in _makers(call.func, scope):
        made = scope.value(maker)
        if rule_level := _LEVEL_OF_RULE.get(id(made)):
            for name in _rules_of(scope):
                _put(codes, name, rule_level, _values(call, 1), scope, path)
            continue
        code: ast.expr | None
        level: ast.expr | None
        if made is findings.Finding:
            code, level = _keyword(call, "code"), _keyword(call, "level")
            values = [_keyword(call, "message"), _keyword(call, "fix")]
        elif made is findings.finding and len(call.args) > 1:
            level, code, values = call.args[0], call.args[1], _values(call, 3)
        elif level_name := _LEVEL_OF.get(id(made)):
            level, code, values = ast.Constant(level_name), call.args[0], _values(call, 2)
        else:
            continue
        for name in _codes(code, scope):
            for shown in texts(level, scope):
                _put(codes, name, shown.sentence, values, scope, path)
            codes[name].document = codes[name].document or _document(name, scope)


_LEVEL_OF = {
    id(findings.error): "error",
    id(findings.warning): "warning",
    id(findings.note): "note",
}


_LEVEL_OF_RULE = {
    id(registry.error): "error",
    id(registry.warning): "warning",
    id(registry.note): "note",
}
"""What rules make findings with, whose code is that of the rule."""


def _rules_of(scope: Scope) -> list[str]:
    """The codes of the rules that run this function."""
    function = scope.body.function
    made = getattr(scope.module, function.name, None) if function else None
    if isinstance(made, Rule):
        return [made.code]
    callers = _callers().get(made, ()) if isinstance(made, FunctionType) else ()
    return [code for _, caller in callers for code in _rules_of(caller)]


def _makers(function: ast.expr, scope: Scope) -> list[ast.expr]:
    """The function that is called; where a name stands for several, all of them."""
    values = []
    if isinstance(function, ast.Name):
        values = [value.node for value in scope.body.reaching(function.id, scope.place)]
    if values:
        parts = [
            [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            for value in values
        ]
        return [value for part in parts for value in part]
    return [function]


def _values(call: ast.Call, first: int) -> list[ast.expr | None]:
    """The message and the fix, which begin at that argument."""
    values: list[ast.expr | None] = [*call.args[first:], None, None][:2]
    return [values[0] or _keyword(call, "message"), values[1] or _keyword(call, "fix")]


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((word.value for word in call.keywords if word.arg == name), None)


def _codes(node: ast.expr | None, scope: Scope) -> list[str]:
    """The codes that the expression may be; none where only a running program knows it."""
    return _code_names(texts(node, scope))


def _code_names(shown: Iterable[Text]) -> list[str]:
    return [text.sentence for text in shown if text.sentence.replace("-", "").isalnum()]


def _document(code: str, scope: Scope) -> str:
    """The docstring of the constant of the module that is the code."""
    for statement, below in pairwise(_syntax_of(scope.module).body):
        match statement, below:
            case (
                ast.Assign(value=ast.Constant(value=value)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if value == code:
                return "" if text.startswith("The code of") else text
    return ""


@cache
def _syntax_of(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _put(
    codes: dict[str, Code],
    code: str,
    level: str,
    values: Sequence[ast.expr | None],
    scope: Scope,
    path: Path,
) -> None:
    codes[code].add(level, _said(values[0], scope), _said(values[1], scope), path)


def _add_rule(codes: dict[str, Code], rule: Rule) -> None:
    """What a rule guards against is its cause; entries of version_rules.yaml have its fixes."""
    code = codes[rule.code]
    path = Path(inspect.getfile(rule.function))
    for entry in catalogue().version_rules.rules:
        if entry.code == rule.code:
            code.add(entry.level, [], [Text(entry.fix)] if entry.fix else [], path)
    code.add("error" if rule.fix else "", [], [Text(rule.fix)] if rule.fix else [], path)
    code.causes = [Text(rule.guards)]


def _add_error(
    entries: dict[str, Code],
    kinds: dict[str, type[PeagleError]],
    call: ast.Call,
    scope: Scope,
    path: Path,
) -> None:
    """Add the error that the call makes, if it makes one."""
    kind = scope.value(call.func)
    if not (isinstance(kind, type) and issubclass(kind, PeagleError)):
        return
    code_argument = call.args[2] if len(call.args) > 2 else _keyword(call, "code")
    values = _values(call, 0)
    codes = [kind.code] if code_argument is None else _codes(code_argument, scope)
    if not codes and not _is_parameter(values[0], scope):
        codes = _code_names(_said(code_argument, scope))  # what the callers give
    for code in codes:
        if code_argument is None:
            kinds[code] = kind
        _put(entries, code, str(kind.exit_code), values, scope, path)
        entries[code].document = entries[code].document or _document(code, scope)
