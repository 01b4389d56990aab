"""A benchmark whose goal is missed fails, so that somebody sees it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import (
    catalog_size,
    check,
    entrypoint,
    first_token,
    images,
    startup,
    streaming_overhead,
    weights_sync,
)


@pytest.mark.parametrize(
    ("document", "table", "plan", "met"),
    [
        (1.4, 1.4, 0.5, True),
        (1.6, 1.4, 0.5, False),
        (1.4, 1.6, 0.5, False),
        (1.4, 1.4, 0.7, False),
    ],
)
def test_a_large_catalogue(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    document: float,
    table: float,
    plan: float,
    met: bool,
) -> None:
    timed: list[tuple[str, ...]] = []

    def medians(*commands: list[str], rounds: int) -> list[float]:
        timed.extend(tuple(command[3:]) for command in commands)
        return [document, table, plan, 0.4]

    monkeypatch.setattr(catalog_size, "medians", medians)
    monkeypatch.setattr(catalog_size, "generate", lambda folder: None)

    assert catalog_size.main() is met
    assert timed[:2] == [("catalog", "list", "--json"), ("catalog", "list")]
    assert capsys.readouterr().out.count("goal") == 3


@pytest.mark.parametrize(
    ("taken", "read", "met"), [(1.9, 4, True), (2.1, 4, False), (1.9, 6_000_000, False)]
)
def test_reading_a_large_target(
    monkeypatch: pytest.MonkeyPatch, taken: float, read: int, met: bool
) -> None:
    @contextmanager
    def nowhere() -> Iterator[str]:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "")
        yield "http://127.0.0.1:9"

    class Relay:
        def __init__(self, port: int) -> None:
            self.received, self.url = read, "http://127.0.0.1:9"

    place = f's3://{check.BUCKET}/{check.PREFIX}"'
    said = subprocess.CompletedProcess([], 0, f'{{"read": [{{"location": "{place}}}]}}'.encode())
    monkeypatch.setattr(check, "sandbox", nowhere)
    monkeypatch.setattr(check, "upload", lambda url: 1)
    monkeypatch.setattr(check, "Relay", Relay)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: said)
    monkeypatch.setattr(check, "seconds", lambda command: taken)

    assert check.main() is met


def _noted(ran: list[bool], good: bool) -> Callable[[], bool]:
    def main() -> bool:
        ran.append(good)
        return good

    return main


@pytest.mark.parametrize(
    ("met", "code"),
    [((True, True, True), 0), ((False, True, True), 1), ((True, True, False), 1)],
)
def test_all_run_before_the_first_miss_is_told(
    monkeypatch: pytest.MonkeyPatch, met: tuple[bool, bool, bool], code: int
) -> None:
    ran: list[bool] = []
    for module in (startup, entrypoint, images, first_token, streaming_overhead):
        monkeypatch.setattr(module, "main", lambda: None)
    for module, good in zip((check, catalog_size, weights_sync), met, strict=True):
        monkeypatch.setattr(module, "main", _noted(ran, good))
    monkeypatch.setattr(sys, "path", [str(Path(check.__file__).parents[1]), *sys.path])

    with pytest.raises(SystemExit) as ended:
        runpy.run_module("benchmarks", run_name="__main__", alter_sys=False)

    assert (ended.value.code, ran) == (code, list(met))
