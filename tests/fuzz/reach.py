"""The functions of the code that parse, and which of them a parser's inputs reach.

A function parses if its body reads JSON, YAML, XML, base64, an archive or a URL, decodes bytes,
makes a number of something that is not computed, validates with pydantic, or applies a compiled
pattern. ``NOT_OUTSIDE`` lists those whose text cannot come from outside. All others must be
entered while the examples of the parsers run.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from functools import _lru_cache_wrapper
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.measure import measure
from tests.fuzz.parser import Parser

ROOT = Path(__file__).parents[2]
CODE = (ROOT / "toolkit" / "peagle", ROOT / "containers" / "peagle_serve")

_READERS = frozenset(
    {"loads", "load", "read", "compose", "scan", "fromstring", "b64decode", "urlsplit", "parse_qs",
     "unpack_from", "from_bytes", "fromhex", "fromisoformat", "strptime", "model_validate",
     "model_validate_json", "validate_json", "decode", "isdigit", "isdecimal",
     "next_event"}
)  # fmt: skip
_OF_JSON = frozenset({"json", "json_reader", "_DECODER"})
"""Whose ``read``, ``load`` and ``loads`` count."""
_PATTERN = frozenset({"fullmatch", "match", "search", "finditer", "findall"})


def parsing_functions() -> Iterator[tuple[str, int]]:
    """``path:qualified name`` and line of every function that parses."""
    for folder in CODE:
        for path in sorted(folder.rglob("*.py")):
            yield from _of_file(path)


def _of_file(path: Path) -> Iterator[tuple[str, int]]:
    name = path.relative_to(ROOT).as_posix().split("/", 1)[1]
    for qualified, node in _functions(ast.parse(path.read_text(encoding="utf-8")), ""):
        if any(map(_parses, ast.walk(node))):
            yield f"{name}:{qualified}", node.lineno


def _functions(
    holder: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(holder):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)


def _parses(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Name):
        computed = ast.BinOp | ast.Constant | ast.Compare
        return function.id in ("int", "float") and bool(
            node.args and not isinstance(node.args[0], computed)
        )
    if not isinstance(function, ast.Attribute):
        return False
    holder = ast.unparse(function.value)
    if function.attr in ("read", "load", "loads"):
        return holder in _OF_JSON
    if function.attr == "open":
        return holder == "tarfile"
    if function.attr == "decode" and "'replace'" in ast.unparse(node):
        return False  # takes all bytes
    return function.attr in _READERS | _PATTERN


def reached(parsers: Iterator[Parser]) -> set[str]:
    """``path:qualified name`` of every function that the examples of the parsers enter."""
    found: set[Any] = set()
    before = sys.getprofile()
    gc.unfreeze()  # the tests' conftest freezes objects, which get_objects then leaves out
    for one in gc.get_objects():
        # isinstance asks the object, and a weak reference whose object is gone raises then.
        if type(one) is _lru_cache_wrapper and one.__module__.startswith("peagle"):
            one.cache_clear()  # another test may have called it

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code)

    for parser in parsers:
        for value in parser.examples:
            sys.setprofile(note)
            try:
                measure(parser, value)
            finally:
                sys.setprofile(before)
    return {
        f"{Path(code.co_filename).relative_to(ROOT).as_posix().split('/', 1)[1]}:"
        f"{code.co_qualname.replace('.<locals>', '')}"
        for code in found
        if Path(code.co_filename).is_relative_to(ROOT)
    }


NOT_OUTSIDE = {
    "peagle/fit/weights.py:": "words in names of tensors",
    "peagle/planning/start.py:": "rounds a number",
    "peagle/aws/ecr.py:document": "a document of this toolkit",
    "peagle/aws/iam.py:": "an answer of IAM",
    "peagle_serve/warm_archive.py:_read_member": "a file that is packed",
    "peagle/render/files.py:": "writes files of a plan",
    "peagle/render/formats/": "writes files of a plan",
    "peagle/render/kubernetes.py:refused": "compares a name of a plan",
    "peagle/sandbox/endpoints.py:": "of a validated request",
    "peagle/sandbox/sagemaker.py:SageMakerBackend.": "of a validated request",
    "peagle/sandbox/observability.py:MetricSource.publish": "a number of our own",
    "peagle/sandbox/observability.py:install": "a statistic that moto's response has read",
    "peagle_serve/middleware.py:Middleware.__init__": "from the supervisor",
    "peagle_serve/middleware.py:_SupervisorSocket.__init__": "from the supervisor",
    "peagle_serve/command.py:_encoded": "decodes what it has just encoded",
    "peagle_serve/warm_start.py:affects_compilation": "a name of a variable",
    "peagle/cli/machine.py:read_explanations": "a chapter of this toolkit",
    "peagle_serve/plugins.py:Core.run": "numbers of open files from /proc",
    "peagle/aws/client.py:Aws.bearer_token": "encodes a token",
    "peagle/aws/sagemaker.py:_once_visible": "searches a word in a message",
    "peagle/cli/catalog.py:list_pairs": "encodes the catalogue",
    "peagle/deploy/access.py:_needs": "the address and the key of a plan, which are checked",
    "peagle/cli/call.py:_payload": "what the bounded reader of JSON reads",
    "peagle/speed/decision.py:_rounded": "rounds a number",
    "peagle/weights/revisions.py:pin_revisions": "compares a commit of a plan",
    "peagle/engine/environment.py:Environment.install_torch": "requirements of this toolkit",
    "peagle/weights/sync.py:_is_same": "encodes a checksum",
    "peagle/weights/sources.py:open_source": "compares a commit of a plan",
    "peagle_serve/warm_archive.py:_write_archive": "writes an archive",
    "peagle_serve/warm_start.py:_collect": "encodes the subject",
    "peagle_serve/warm_start.py:_free_bytes": "from the kernel",
}
"""Beginnings of the names of functions that parse nothing from outside, and what their text is."""
