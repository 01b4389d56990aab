"""Questions and answers about Python, built from the functions and docstrings of a file."""

from __future__ import annotations

import ast
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef

MAX_CODE = 900
MAX_ESCAPES = 4
MAX_DOC = 500
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


@dataclass(frozen=True)
class Chat:
    """One question with its answer; `kind` names the builder, `source` the file it came from."""

    kind: str
    source: str
    question: str
    answer: str


@dataclass(frozen=True)
class Subject:
    """A function, method or class of a file, with what the builders need to describe it."""

    module: str
    owner: str
    node: Function | ast.ClassDef
    code: str
    doc: str

    @property
    def path(self) -> str:
        """The dotted name, such as `textwrap.TextWrapper.wrap`."""
        return ".".join(part for part in (self.module, self.owner, self.node.name) if part)


def module_name(path: str) -> str:
    """`os/path.py` -> `os.path`; a package's `__init__` is the package."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def chats_of(path: str, text: str) -> Iterator[Chat]:
    """Every chat that can be built from one file."""
    if not path.endswith(".py"):
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for subject in _subjects(module_name(path), text, tree):
        for kind, builder in BUILDERS.items():
            pair = builder(subject)
            if pair is not None and pair[1].count("\\") <= MAX_ESCAPES:
                yield Chat(kind, path, *pair)


def _subjects(module: str, text: str, tree: ast.Module) -> Iterator[Subject]:
    lines = text.splitlines()
    owned = [("", node) for node in tree.body]
    owned += [(c.name, node) for c in tree.body if isinstance(c, ast.ClassDef) for node in c.body]
    for owner, node in owned:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            code = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            yield Subject(module, owner, node, code, ast.get_docstring(node) or "")


def _is_test(subject: Subject) -> bool:
    return subject.node.name.startswith("test")


def _fence(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def _short_doc(doc: str) -> str:
    """Whole paragraphs of a docstring, as many as fit."""
    kept = ""
    for paragraph in re.split(r"\n\s*\n", doc.strip()):
        if kept and len(kept) + len(paragraph) > MAX_DOC:
            break
        kept = f"{kept}\n\n{paragraph}" if kept else paragraph[:MAX_DOC]
    return kept


def _summary(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())[:200]


def _arguments(node: Function) -> list[tuple[str, str]]:
    """(name, default as source or "") for each argument except self and cls."""
    spec = node.args
    plain = [*spec.posonlyargs, *spec.args]
    missing = len(plain) - len(spec.defaults)
    pairs = [(a.arg, "") for a in plain[:missing]]
    pairs += [(a.arg, ast.unparse(d)) for a, d in zip(plain[missing:], spec.defaults, strict=True)]
    pairs += [(f"*{spec.vararg.arg}", "")] if spec.vararg else []
    defaults = [ast.unparse(d) if d else "" for d in spec.kw_defaults]
    pairs += [(a.arg, d) for a, d in zip(spec.kwonlyargs, defaults, strict=True)]
    pairs += [(f"**{spec.kwarg.arg}", "")] if spec.kwarg else []
    return [pair for pair in pairs if pair[0] not in {"self", "cls", "mcls"}]


def _without_doc(subject: Subject) -> str | None:
    """The function's source without its docstring; None if it has no docstring or nothing else."""
    node = subject.node
    if isinstance(node, ast.ClassDef) or not subject.doc or len(node.body) < 2:
        return None
    lines = subject.code.splitlines()
    first, end = node.body[0].lineno - node.lineno, node.body[0].end_lineno
    if end is None or first < 1:
        return None
    return "\n".join(lines[:first] + lines[end - node.lineno + 1 :])


def _explain(subject: Subject) -> tuple[str, str] | None:
    """The question "What does X do?", answered with its docstring and a call."""
    if not subject.doc or _is_test(subject):
        return None
    node, name = subject.node, subject.node.name
    kind = "class" if isinstance(node, ast.ClassDef) else "method" if subject.owner else "function"
    where = f"class `{subject.owner}`" if subject.owner else f"module `{subject.module}`"
    pairs = [] if isinstance(node, ast.ClassDef) else _arguments(node)
    names = ", ".join(name for name, default in pairs if not default)
    imported = subject.owner or name
    call = f"{subject.owner.lower()}.{name}({names})" if subject.owner else f"{name}({names})"
    example = _fence(f"from {subject.module} import {imported}\n\nresult = {call}")
    answer = f"`{name}` is a {kind} of the {where}.\n\n{_short_doc(subject.doc)}"
    return f"What does {subject.path} do?", f"{answer}\n\nYou can use it like this:\n\n{example}"


def _write(subject: Subject) -> tuple[str, str] | None:
    """The request "Write a function", answered with its source."""
    if not subject.doc or len(subject.code) > MAX_CODE or isinstance(subject.node, ast.ClassDef):
        return None
    if _is_test(subject):
        return None
    kind = "method" if subject.owner else "function"
    question = f"Write a Python {kind} `{subject.node.name}`: {_summary(subject.doc)}"
    return question, f"Here is the {kind} `{subject.node.name}`:\n\n{_fence(subject.code)}"


def _list_arguments(subject: Subject) -> tuple[str, str] | None:
    """The question "Which arguments?", with the signature in the question."""
    node = subject.node
    if isinstance(node, ast.ClassDef) or _is_test(subject):
        return None
    pairs = _arguments(node)
    if not 1 <= len(pairs) < len(NUMBERS):
        return None
    head = subject.code.splitlines()[: max(1, node.body[0].lineno - node.lineno)]
    question = f"Which arguments does this function take?\n\n{_fence(chr(10).join(head))}"
    if len(question) > MAX_CODE:
        return None
    noun = "argument" if len(pairs) == 1 else "arguments"
    items = [f"- `{a}`" + (f", by default `{d}`" if d else "") for a, d in pairs]
    start = f"The function `{node.name}` takes {NUMBERS[len(pairs)]} {noun}:\n\n"
    return question, start + "\n".join(items)


def _describe(subject: Subject) -> tuple[str, str] | None:
    """The question "What does this function do?", with the source in the question."""
    code = _without_doc(subject)
    if code is None or len(code) > MAX_CODE // 2:
        return None
    answer = f"The function `{subject.node.name}` does this:\n\n{_short_doc(subject.doc)}"
    return f"What does this function do?\n\n{_fence(code)}", answer


def _document(subject: Subject) -> tuple[str, str] | None:
    """The request "Add a docstring", answered with the whole function."""
    code = _without_doc(subject)
    if code is None or len(code) > MAX_CODE // 2 or len(subject.code) > MAX_CODE:
        return None
    name = subject.node.name
    answer = f"Here is `{name}` with a docstring:\n\n{_fence(subject.code)}"
    return f"Add a docstring to this function.\n\n{_fence(code)}", answer


def _test(subject: Subject) -> tuple[str, str] | None:
    """The request "Write a unit test", answered with one of the library's own."""
    if not _is_test(subject) or not subject.owner or not 120 < len(subject.code) <= MAX_CODE:
        return None
    module = subject.module.rpartition(".")[2].removeprefix("test_")
    question = f"Write a unit test `{subject.node.name}` for the module `{module}`."
    return question, f"Here is a unit test for `{module}`:\n\n{_fence(subject.code)}"


BUILDERS: dict[str, Callable[[Subject], tuple[str, str] | None]] = {
    "explain": _explain,
    "write": _write,
    "arguments": _list_arguments,
    "describe": _describe,
    "document": _document,
    "test": _test,
}

SEAMS = {
    "explain": ".",
    "write": "`: ",
    "describe": "):\n",
    "document": "):\n",
    "test": "` for the module ",
}
"""Where to split a question of each kind."""


def recombined(chats: list[Chat], seed: int) -> list[tuple[str, str]]:
    """New questions with their kinds, each the head of one question and the tail of another.

    The target has learned no answer to these, as with a user's question.
    """
    draw = random.Random(seed)
    questions: list[tuple[str, str]] = []
    for kind, seam in SEAMS.items():
        cut = [c.question.rpartition(seam) for c in chats if c.kind == kind and seam in c.question]
        tails = [tail for _, _, tail in cut]
        draw.shuffle(tails)
        pairs = zip(cut, tails, strict=True)
        questions += [(kind, head + seam + tail) for (head, _, _), tail in pairs]
    return questions
