"""Every requirement of the carried vLLM is carried, on the host, or left out for a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu.engine_set import EngineSet, engine_set, locked
from benchmarks.gpu.needs import needs_of

CARRIED = {
    "vllm": ("0.26.0", ["torch==2.11.0", "fastapi[standard]>=0.1", "mcp", "zen; extra == 'z'",
                        "win; sys_platform == 'win32'", "tilelang==0.1.9"]),
    "fastapi": ("0.2", ["uvicorn>=1; extra == 'standard'"]),
    "uvicorn": ("1.1", ["numpy<2.4"]),
    "mcp": ("1.2", []),
}  # fmt: skip


def tree(folder: Path, carried: dict[str, tuple[str, list[str]]]) -> Path:
    for name, (version, requires) in carried.items():
        place = folder / f"{name}-{version}.dist-info"
        place.mkdir()
        lines = [f"Requires-Dist: {one}" for one in requires]
        head = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
        (place / "METADATA").write_text("\n".join([*head, *lines]) + "\n\n")
    return folder


@pytest.fixture
def engine() -> EngineSet:
    host = {"torch": "2.11.0", "numpy": "2.3.5"}
    return replace(engine_set("0.26.0"), host=host, left_out={"tilelang": "x"}, met_otherwise={})


def test_extras_are_followed_and_other_systems_are_not(tmp_path: Path, engine: EngineSet) -> None:
    found = needs_of(tree(tmp_path, CARRIED), engine)
    assert found.unmet == []
    assert (found.carried, found.by_host, found.by_choice) == (3, 2, 1)


def test_what_nobody_has_is_named_with_who_asks(tmp_path: Path, engine: EngineSet) -> None:
    carried = {name: has for name, has in CARRIED.items() if name not in ("mcp", "uvicorn")}
    found = needs_of(tree(tmp_path, carried), engine)
    asked = [line.partition(", and")[0] for line in found.unmet]
    assert asked == [
        'fastapi asks for uvicorn>=1; extra == "standard"',
        "vllm asks for mcp",
    ]


def test_versions_that_do_not_fit_are_named(tmp_path: Path, engine: EngineSet) -> None:
    older = {**CARRIED, "uvicorn": ("0.9", ["numpy<2.4"])}
    found = needs_of(tree(tmp_path, older), replace(engine, host={**engine.host, "numpy": "2.5"}))
    assert found.unmet == [
        'fastapi asks for uvicorn>=1; extra == "standard", carried is 0.9',
        "uvicorn asks for numpy<2.4, the host has 2.5",
    ]
    told = {"numpy<2.4": "tried"}
    (only,) = needs_of(
        tmp_path, replace(engine, host={**engine.host, "numpy": "2.5"}, met_otherwise=told)
    ).unmet
    assert "uvicorn>=1" in only


def test_on_the_host_its_own_python_is_asked(tmp_path: Path, engine: EngineSet) -> None:
    asks = {"vllm": ("0.26.0", ["pytest>=1", "no-such-thing-anywhere", "pytest<0.1"])}
    found = needs_of(tree(tmp_path, asks), engine, on_host=True)
    assert len(found.unmet) == 2
    assert "and this Python has none" in found.unmet[0]


def test_the_lock_has_what_a_run_died_without_and_nothing_twice() -> None:
    engine = engine_set("0.26.0")
    carried = locked(engine)
    assert carried["transformers"] == "5.14.1"
    assert carried["mcp"].startswith("1."), "vLLM's server does not start with 2"
    assert carried["nvidia-cutlass-dsl-libs-cu13"] == carried["nvidia-cutlass-dsl"] == "4.6.0"
    for name in ("quack-kernels", "humming-kernels", "pyelftools", "flashinfer-python",
                 "apache-tvm-ffi", "nvidia-cutlass-dsl-libs-base", "nvidia-cudnn-frontend",
                 "pycountry", "ninja", "vllm"):  # fmt: skip
        assert name in carried
    assert not set(carried) & {*engine.host, *engine.left_out}
    text = engine.lock.read_text()
    assert "index-url" not in text
    assert "://" not in text
    assert all("--hash=" in block for block in text.split("\n\n") if "==" in block)
