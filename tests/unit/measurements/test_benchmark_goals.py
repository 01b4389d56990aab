"""A benchmark whose goal is missed fails."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from measurements import (
    bench_load,
    catalog_size,
    check,
    crash,
    entrypoint,
    first_token,
    images,
    startup,
    streaming_overhead,
    weights_sync,
)

WITH_GOALS = (entrypoint, images, crash, check, catalog_size, bench_load, weights_sync)


@pytest.mark.parametrize("missed", [None, entrypoint, weights_sync])
def test_all_measurements_run_before_a_miss_is_reported(
    monkeypatch: pytest.MonkeyPatch, missed: ModuleType | None
) -> None:
    ran: list[ModuleType] = []

    def recorded(module: ModuleType) -> Callable[[], bool]:
        def main() -> bool:
            ran.append(module)
            return module is not missed

        return main

    for module in (startup, first_token, streaming_overhead):
        monkeypatch.setattr(module, "main", lambda: None)
    for module in WITH_GOALS:
        monkeypatch.setattr(module, "main", recorded(module))
    monkeypatch.setattr(sys, "path", [str(Path(check.__file__).parents[1]), *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("measurements", run_name="__main__", alter_sys=False)
    assert (ended.value.code, tuple(ran)) == (0 if missed is None else 1, WITH_GOALS)
