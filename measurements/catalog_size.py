"""The time that a large catalogue takes.

Goals, with 2,000 targets in a folder: ``peagle --catalog DIR catalog list`` at most 4 s, as JSON
and as a table; ``peagle --catalog DIR plan`` at most 0.2 s more than without the folder.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from measurements.timing import medians
from peagle.catalog.loading import target_files

PEAGLE = str(Path(sys.executable).with_name("peagle"))
TARGETS = 2000
ROUNDS = 5
GOAL_LIST_SECONDS = 4.0
GOAL_MORE_SECONDS = 0.2


def generate(folder: Path, count: int = TARGETS) -> None:
    """Write ``count`` targets below ``folder``: copies of the bundled files under other names."""
    templates = [path for path in target_files(None).values() if "./" not in path.read_text()]
    for number in range(count):
        text = templates[number % len(templates)].read_text(encoding="utf-8")
        name = f"model-{number:04}"
        text = re.sub(r"^id: .*$", f"id: made/{name}", text, count=1, flags=re.MULTILINE)
        text = re.sub(r"^short_name: .*$", f"short_name: {name}", text, count=1, flags=re.MULTILINE)
        path = folder / "made" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> bool:
    """Measure and print one line per goal; whether all are met."""
    with tempfile.TemporaryDirectory() as place:
        generate(Path(place))
        large = [PEAGLE, "--catalog", place]
        document, table, plan, small = medians(
            [*large, "catalog", "list", "--json"],
            [*large, "catalog", "list"],
            [*large, "plan", "model-1234", "--json"],
            [PEAGLE, "plan", "gpt-oss-20b", "--json"],
            rounds=ROUNDS,
        )
    goals = (
        ("peagle catalog list --json", document, GOAL_LIST_SECONDS),
        ("peagle catalog list", table, GOAL_LIST_SECONDS),
        ("peagle plan, more", plan - small, GOAL_MORE_SECONDS),
    )
    print(f"{'targets':<28}{TARGETS}")
    for name, taken, goal in goals:
        print(f"{name:<28}{taken:.3f} s   goal {goal:.3f} s   {taken / goal:.2f}")
    return all(taken <= goal for _, taken, goal in goals)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
