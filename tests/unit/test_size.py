"""How many lines each package may have. Work on a package lowers its number towards the aim."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "toolkit" / "peagle", ROOT / "containers")

# package: lines at most, aim
BUDGET = {
    "modules": (4_320, 3_750),  # errors, case, proof, protocol, ... directly in peagle
    "peagle_serve": (4_049, 3_600),
    "vllm": (682, 500),
    "catalog": (2_158, 1_800),
    "checkpoints": (1_985, 1_550),
    "checks": (2_440, 2_300),
    "fit": (1_719, 1_700),
    "speed": (1_699, 1_500),
    "planning": (5_259, 3_850),
    "render": (3_500, 3_000),
    "engine": (3_021, 1_800),
    "images": (850, 700),
    "aws": (3_660, 2_600),
    "weights": (2_075, 1_500),
    "warm": (420, 400),
    "deploy": (6_390, 4_600),
    "bench": (3_943, 3_100),
    "train": (2_519, 1_500),
    "sandbox": (5_335, 5_360),
    "cli": (9_243, 6_200),
}
MOST_LINES, MOST_FILES = 65_075, 246


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
