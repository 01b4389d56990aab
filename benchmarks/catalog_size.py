"""What a large catalogue costs.

Goals, with 2,000 targets of one's own: ``peagle --catalog DIR catalog list`` at most 1.5 s;
``peagle --catalog DIR plan`` at most 0.2 s more than without the folder.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from benchmarks.timing import medians
from toolkit.catalog.loading import target_files

PEAGLE = str(Path(sys.executable).with_name("peagle"))
TARGETS = 2000
ROUNDS = 5


def generate(folder: Path, count: int = TARGETS) -> None:
    """``count`` targets below ``folder``: the bundled files in turns, under other names."""
    templates = [path for path in target_files(None).values() if "./" not in path.read_text()]
    for number in range(count):
        text = templates[number % len(templates)].read_text(encoding="utf-8")
        name = f"model-{number:04}"
        text = re.sub(r"^id: .*$", f"id: made/{name}", text, count=1, flags=re.MULTILINE)
        text = re.sub(r"^short_name: .*$", f"short_name: {name}", text, count=1, flags=re.MULTILINE)
        path = folder / "made" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Measure and print, one line per goal."""
    with tempfile.TemporaryDirectory() as place:
        generate(Path(place))
        large = [PEAGLE, "--catalog", place]
        listing, plan, small = medians(
            [*large, "catalog", "list", "--json"],
            [*large, "plan", "model-1234", "--json"],
            [PEAGLE, "plan", "gpt-oss-20b", "--json"],
            rounds=ROUNDS,
        )
    more = plan - small
    print(f"targets                  {TARGETS}")
    print(f"peagle catalog list      {listing:.3f} s   goal 1.500 s   {listing / 1.5:.2f}")
    print(f"peagle plan, more        {more:.3f} s   goal 0.200 s   {more / 0.2:.2f}")


if __name__ == "__main__":
    main()
