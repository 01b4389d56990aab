"""Write the questions from which a head for `peagle/tiny` is trained, as JSON lines.

    python -m examples.tiny.questions -n 20000 -o questions.jsonl
    peagle train tiny --data questions.jsonl

They are about the standard library of the Python that runs this, without the held-out modules that
the pair is measured with. They have no answers: the target gives its own.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.tiny import corpus
from examples.tiny.chats import Chat, recombined

SEED = 20260201


def select(chats: list[Chat], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` questions, or all of them if there are fewer, in an order drawn by `seed`.

    About half of them are put together from two others, so that the target has to guess, as it
    has with a user's question. `domain` is the kind of question.
    """
    real = [(chat.kind, chat.question) for chat in chats]
    questions = list(dict.fromkeys([*real, *recombined(chats, seed)]))
    random.Random(seed).shuffle(questions)
    for number, (kind, question) in enumerate(questions[:count]):
        messages = [{"role": "user", "content": question}]
        yield {"id": str(number), "domain": kind, "messages": messages}


def main() -> None:
    """Write the file that is named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", "--count", type=int, default=20_000, help="questions")
    parser.add_argument("-o", "--out", type=Path, default=Path("questions.jsonl"))
    parser.add_argument("--stdlib", type=Path, help="default: the running Python's")
    options = parser.parse_args()
    chats = corpus.build(options.stdlib).train_chats
    with options.out.open("w", encoding="utf-8") as stream:
        for row in select(chats, options.count, SEED):
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
