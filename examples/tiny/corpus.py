"""Text from CPython's standard library: whole files, and chats built from its functions.

The split is by module: a held-out module, its package and its tests are never trained on.
"""

from __future__ import annotations

import ast
import platform
import random
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.tiny.chats import Chat, chats_of

HELD_OUT_NAMES = """
bisect calendar cmd colorsys csv difflib filecmp fnmatch fractions glob graphlib heapq html
mailcap netrc pprint queue sched secrets shelve shlex statistics string textwrap timeit wave zipapp
"""
HELD_OUT = frozenset(HELD_OUT_NAMES.split())
SKIPPED_FOLDERS = frozenset({"site-packages", "__pycache__", "encodings", "pydoc_data", "data"})
TESTS = "test"
MAX_FILE_CHARS = 400_000
MIN_FILE_CHARS = 200
MIN_ASCII = 0.99


@dataclass(frozen=True)
class File:
    """One source file; `path` is relative to the standard library's folder."""

    path: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """All text, already split."""

    python: str
    train_files: list[File]
    held_out_files: list[File]
    train_chats: list[Chat]
    held_out_chats: list[Chat]


def is_held_out(path: str) -> bool:
    """Whether a file belongs to a held-out module: its source, its package or its tests."""
    parts = Path(path).with_suffix("").parts
    return any(part.removeprefix("test_").lstrip("_") in HELD_OUT for part in parts)


def read_files(stdlib: Path) -> Iterator[File]:
    """Every readable Python file of the library, in a fixed order."""
    for path in sorted(stdlib.rglob("*.py")):
        relative = path.relative_to(stdlib)
        if SKIPPED_FOLDERS & set(relative.parts[:-1]) or relative.name.startswith("_sysconfig"):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        readable = sum(map(str.isascii, text)) >= MIN_ASCII * len(text)
        if readable and MIN_FILE_CHARS <= len(text) <= MAX_FILE_CHARS:
            yield File(relative.as_posix(), text)


def read_topics(stdlib: Path) -> Iterator[File]:
    """The language reference that `help()` prints, one text for each topic."""
    tree = ast.parse((stdlib / "pydoc_data" / "topics.py").read_text(encoding="utf-8"))
    assigned = next(node for node in tree.body if isinstance(node, ast.Assign))
    topics: dict[str, str] = ast.literal_eval(assigned.value)
    for name, text in sorted(topics.items()):
        yield File(f"pydoc_data/topics/{name}", text)


def build(stdlib: Path | None = None) -> Corpus:
    """Read a standard library, by default the running Python's, and split it."""
    root = stdlib or Path(sysconfig.get_path("stdlib"))
    files = [*read_files(root), *read_topics(root)]
    train = [file for file in files if not is_held_out(file.path)]
    held_out = [file for file in files if is_held_out(file.path)]
    train_chats = _unique(chat for file in train for chat in chats_of(file.path, file.text))
    seen = {chat.answer for chat in train_chats}
    held_out_chats = _unique(chat for file in held_out for chat in chats_of(file.path, file.text))
    fresh = [chat for chat in held_out_chats if chat.answer not in seen]
    return Corpus(platform.python_version(), train, held_out, train_chats, fresh)


def _unique(chats: Iterable[Chat]) -> list[Chat]:
    return list({(chat.question, chat.answer): chat for chat in chats}.values())


def completion_prompts(files: list[File], count: int, seed: int) -> list[str]:
    """Starts of code that end inside a function, each from a different file, library files first.

    They end without a line break, because the tokenizer joins it with the next indentation.
    """
    draw = random.Random(seed)
    library = [file for file in files if file.path.endswith(".py")]
    draw.shuffle(library)
    library.sort(key=lambda file: TESTS in file.path)
    prompts: list[str] = []
    for file in library:
        lines = file.text.splitlines()
        starts = [i for i, line in enumerate(lines) if line.lstrip().startswith(("def ", "class "))]
        if len(starts) < 3 or len(prompts) == count:
            continue
        start = draw.choice(starts[1:])
        prompts.append("\n".join(lines[max(0, start - 8) : start + draw.randint(1, 6)]).rstrip())
    return prompts
