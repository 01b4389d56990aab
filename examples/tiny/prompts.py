"""The held-out prompts that measure the pair; the first eight suit a demo."""

from __future__ import annotations

import json
import random
from pathlib import Path

from examples.tiny.chats import BUILDERS
from examples.tiny.corpus import TESTS, Corpus, completion_prompts

Prompt = dict[str, str]
"""`kind` is "chat" or "completion"; `prompt` the user's message or the text to continue."""

DEMO_CHATS = (
    "Which arguments does this function take?\n\n```python\ndef nsmallest(n, iterable, key=None):",
    "What does difflib.SequenceMatcher.get_opcodes do?",
    "Add a docstring to this function.\n\n```python\ndef _heapify_max(x):",
    "Write a Python method `push_source`:",
    "What does textwrap.wrap do?",
    "Write a unit test `test_dataclass_no_repr` for the module `pprint`.",
)
DEMO_COMPLETIONS = (4, 10)
"""Indices of two drawn completions whose answers do not repeat themselves."""
PER_KIND = 2
COMPLETIONS = 26
MAX_CHARS = 700


def select(corpus: Corpus, seed: int) -> list[Prompt]:
    """About forty prompts from held-out files."""
    draw = random.Random(seed)
    files = [file for file in corpus.held_out_files if len(file.text) > 2000]
    codes = [p for p in completion_prompts(files, 2 * COMPLETIONS, seed) if len(p) <= MAX_CHARS]
    completions = [{"kind": "completion", "prompt": code} for code in codes[:COMPLETIONS]]
    questions = [chat.question for chat in corpus.held_out_chats]
    demo = [q for start in DEMO_CHATS for q in questions if q.startswith(start)][: len(DEMO_CHATS)]
    chosen = list(demo)
    for kind in BUILDERS:
        pool = [
            chat.question
            for chat in corpus.held_out_chats
            if chat.kind == kind
            and chat.question not in chosen
            and len(chat.question) <= MAX_CHARS
            and (kind == "test" or TESTS not in chat.source)
        ]
        chosen += draw.sample(pool, PER_KIND)
    chats = [{"kind": "chat", "prompt": question} for question in chosen]
    first, second = (completions[index] for index in DEMO_COMPLETIONS)
    rest = [prompt for prompt in completions if prompt not in (first, second)]
    return [*chats[:3], first, *chats[3:6], second, *chats[6:], *rest]


def write(prompts: list[Prompt], path: Path) -> None:
    """Write prompts.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(prompts, indent=2) + "\n")


def read(path: Path) -> list[Prompt]:
    """Read prompts.json."""
    prompts: list[Prompt] = json.loads(path.read_text())
    return prompts
