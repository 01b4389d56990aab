"""The time that ``--help`` and a plan take.

Goals: ``peagle --help`` at most 1.5 times ``python -c "import click"`` plus 100 ms;
``peagle plan gpt-oss-20b`` at most 0.5 s, as text and with ``--json``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from measurements.timing import medians

PEAGLE = str(Path(sys.executable).with_name("peagle"))


def main() -> None:
    """Measure and print one line per goal."""
    click, help_, text, plan, listing = medians(
        [sys.executable, "-c", "import click"],
        [PEAGLE, "--help"],
        [PEAGLE, "plan", "gpt-oss-20b"],
        [PEAGLE, "plan", "gpt-oss-20b", "--json"],
        [PEAGLE, "catalog", "list", "--json"],
    )
    allowed = 1.5 * click + 0.1
    print(f"import click             {click:.3f} s")
    print(f"peagle --help            {help_:.3f} s   goal {allowed:.3f} s   {help_ / allowed:.2f}")
    print(f"peagle plan, as text     {text:.3f} s   goal 0.500 s   {text / 0.5:.2f}")
    print(f"peagle plan --json       {plan:.3f} s   goal 0.500 s   {plan / 0.5:.2f}")
    print(f"peagle catalog list      {listing:.3f} s")


if __name__ == "__main__":
    main()
