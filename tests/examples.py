"""Runs the Python sessions that a document shows, and compares what they print."""

import doctest
import re
from pathlib import Path
from typing import Any

CHAPTER = Path(__file__).parents[1] / "docs" / "library.md"
WITH_ACCOUNT = "## With an account"
"""The heading of the examples that need an account or the sandbox."""
_FENCED = re.compile(r"^```pycon\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_examples(text: str, names: dict[str, Any]) -> int:
    """Run the sessions in ``text`` one after the other, with these names; returns how many
    examples they have. Raises AssertionError with the differences."""
    source = "".join(_FENCED.findall(text))
    test = doctest.DocTestParser().get_doctest(source, names, CHAPTER.name, str(CHAPTER), 0)
    differences: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=differences.append)
    assert not differences, "".join(differences)
    return len(test.examples)
