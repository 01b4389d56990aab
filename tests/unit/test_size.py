"""How many lines each package may have. Work on a package lowers its number towards the aim."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "toolkit" / "peagle", ROOT / "containers")

# package: lines at most, aim
BUDGET = {
    "modules": (4_157, 3_750),  # errors, case, proof, protocol, ... directly in peagle
    "peagle_serve": (3_725, 3_600),
    "vllm": (678, 500),
    "catalog": (1_976, 1_800),
    "checkpoints": (1_955, 1_550),
    "checks": (2_117, 2_300),
    "fit": (1_703, 1_700),
    "speed": (1_716, 1_500),
    "planning": (4_950, 3_850),
    "render": (3_245, 3_000),
    "engine": (2_916, 1_800),
    "images": (772, 700),
    "aws": (2_884, 2_600),
    "weights": (1_793, 1_500),
    "warm": (377, 400),
    "deploy": (6_055, 4_600),
    "bench": (3_588, 3_100),
    "train": (2_421, 1_500),
    "sandbox": (4_886, 5_360),
    "cli": (7_850, 6_200),
}
MOST_LINES, MOST_FILES = 59_764, 241


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
