"""A benchmark whose goal is missed fails."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from peagle.engine.machine import Engine
from peagle.errors import PeagleError


@pytest.mark.parametrize(
    ("document", "table", "plan", "met"),
    [
        (1.4, 1.4, 0.5, True),
        (4.1, 1.4, 0.5, False),
        (1.4, 4.1, 0.5, False),
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
    def fake_sandbox() -> Iterator[str]:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "")
        yield "http://127.0.0.1:9"

    class FakeProxy:
        def __init__(self, port: int) -> None:
            self.received, self.url = read, "http://127.0.0.1:9"

    place = f's3://{check.BUCKET}/{check.PREFIX}"'
    output = subprocess.CompletedProcess([], 0, f'{{"read": [{{"location": "{place}}}]}}'.encode())
    monkeypatch.setattr(check, "sandbox", fake_sandbox)
    monkeypatch.setattr(check, "upload", lambda url: 1)
    monkeypatch.setattr(check, "Proxy", FakeProxy)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: output)
    monkeypatch.setattr(check, "seconds", lambda command: taken)

    assert check.main() is met


def _recorded(ran: list[bool], good: bool) -> Callable[[], bool]:
    def main() -> bool:
        ran.append(good)
        return good

    return main


@pytest.mark.parametrize(("added", "met"), [(0.14, True), (0.16, False)])
def test_the_entrypoint_before_vllm(
    monkeypatch: pytest.MonkeyPatch, added: float, met: bool
) -> None:
    def seconds(command: list[str], environment: dict[str, str]) -> float:
        return 0.1 + (added if command[-1] == "serve" else 0)

    monkeypatch.setattr("peagle.engine.machine.find_engine", lambda vllm: Engine(Path("py"), vllm))
    monkeypatch.setattr(entrypoint, "fake_vllm", lambda place, python: None)
    monkeypatch.setattr(entrypoint, "_seconds", seconds)

    assert entrypoint.main() is met


class NoDocker:
    def check(self) -> None:
        raise PeagleError("the Docker daemon does not respond", "start Docker")


class AnyDocker:
    def check(self) -> None: ...

    def inspect(self, kind: str, name: str) -> dict[str, str]:
        return {"Id": name}


@pytest.mark.parametrize(
    ("docker", "limit", "built", "met"),
    [
        (NoDocker, 5_000_000, 0, True),
        (NoDocker, 10_000, 0, False),
        (AnyDocker, 5_000_000, 90_000, True),
        (AnyDocker, 5_000_000, 5_100_000, False),
    ],
)
def test_the_layer_of_an_image(
    monkeypatch: pytest.MonkeyPatch, docker: type, limit: int, built: int, met: bool
) -> None:
    monkeypatch.setattr(images, "Docker", docker)
    monkeypatch.setattr(images, "LAYER_LIMIT_BYTES", limit)
    monkeypatch.setattr(images, "_build", lambda name: built)

    assert images.main() is met


@pytest.mark.parametrize(("slowest", "met"), [(4.9, True), (5.1, False)])
def test_the_end_of_a_container_whose_engine_ended(
    monkeypatch: pytest.MonkeyPatch, slowest: float, met: bool
) -> None:
    ended = iter([0.2, slowest, 0.1])
    monkeypatch.setattr(crash, "refusals", lambda: [0.05])
    monkeypatch.setattr(crash, "crash", lambda: (next(ended), "head-does-not-fit"))

    assert crash.main() is met


WITH_GOALS = (entrypoint, images, crash, check, catalog_size, bench_load, weights_sync)


@pytest.mark.parametrize("missed", [None, *WITH_GOALS], ids=lambda one: one and one.__name__)
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
