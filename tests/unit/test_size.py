"""How many lines each package may have. Work on a package lowers its number towards the aim."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "toolkit" / "peagle", ROOT / "containers")

# package: lines at most, aim
BUDGET = {
    "modules": (4_400, 3_650),  # errors, case, proof, protocol, ... directly in peagle
    "peagle_serve": (4_470, 3_600),
    "vllm": (670, 500),
    "catalog": (2_330, 1_800),
    "checkpoints": (2_400, 1_550),
    "checks": (2_600, 2_300),
    "fit": (1_850, 1_700),
    "speed": (1_730, 1_600),
    "planning": (5_640, 3_850),
    "render": (3_580, 3_000),
    "engine": (2_240, 1_800),
    "images": (960, 700),
    "aws": (4_020, 2_450),
    "weights": (2_200, 1_500),
    "warm": (430, 400),
    "deploy": (6_880, 4_600),
    "bench": (4_350, 3_100),
    "sandbox": (5_060, 5_000),
    "cli": (9_110, 6_000),
}
MOST_LINES, MOST_FILES = 64_800, 245


def test_no_package_has_more_lines_than_its_budget() -> None:
    lines: Counter[str] = Counter()
    files = 0
    for folder in FOLDERS:
        for file in folder.rglob("*.py"):
            inside = file.relative_to(folder).parts
            package = inside[0] if len(inside) > 1 else "modules"
            lines[package] += len(file.read_text(encoding="utf-8").splitlines())
            files += 1
    assert {*lines} == {*BUDGET}
    assert {name: count for name, count in lines.items() if count > BUDGET[name][0]} == {}
    assert sum(lines.values()) <= MOST_LINES
    assert files <= MOST_FILES
