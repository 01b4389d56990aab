"""The errors of the speed estimates and of the memory fits against measurements: ``tables.json``.

Of the speeds, what ``python -m measurements.speed_model --rows`` prints. Of the memory, what
``tests/unit/fit`` compares: the measured cache, and how far the estimate is from it.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.golden.recordings import BUNDLED_CATALOG
from tests.unit.fit.test_fit_against_measurements import off, rows

_CHECKOUT = Path(__file__).parents[2]


def record(_: Path) -> dict[str, Any]:
    """Both tables."""
    return {"speed": _speeds(), "memory": _memory()}


def _speeds() -> list[str]:
    """Each line with its numbers, as printed, for the catalogue that ships."""
    paths = os.pathsep.join(str(_CHECKOUT / name) for name in (".", "toolkit", "containers"))
    variables = {name: text for name, text in os.environ.items() if name != BUNDLED_CATALOG}
    done = subprocess.run(
        [sys.executable, "-m", "measurements.speed_model", "--rows"], cwd=_CHECKOUT, check=True,
        env={**variables, "PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def _memory() -> dict[str, Any]:
    table = {}
    for row in rows():
        gib, share = off(row, row.compiled)
        table[f"{row.name}, {row.case.engine.kv_cache_dtype}, K={row.case.engine.k}"] = {
            "kv_gib": round(row.kv_gib, 3),
            "off_gib": round(gib, 3),
            "tokens": row.tokens,
            "off_tokens": round(share, 4),
        }
    return table
