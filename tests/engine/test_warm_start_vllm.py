"""Warm starts with real vLLM: what one engine compiles is fetched, and starts the next one."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from peagle.engine.installed import Engine, check_compiler, find_engine
from peagle.errors import EngineMissing, UserError
from peagle_serve.contract import COUNTERS_ATTRIBUTE, WARM_ATTRIBUTE
from tests.conftest import DEFAULT_VLLM
from tests.engine.serving import TINY, Container, speculation

pytestmark = pytest.mark.engine

PART_BYTES = 1_000_000
AT_MOST = 0.75
"""Of a cold start's time, on a machine that others use too; alone it is about a third."""

COMPILED = {
    "SM_VLLM_ENFORCE_EAGER": "false",
    "SM_VLLM_MODEL": "/opt/ml/model/target",
    "SM_VLLM_SPECULATIVE_CONFIG": speculation(Path("/opt/ml/model/drafter")),
    "SM_VLLM_MAX_MODEL_LEN": "512",
    "SM_VLLM_MAX_NUM_SEQS": "2",
}


class Collected(NamedTuple):
    """What a cold start left: the manifest, the archive, and the entrypoint's log."""

    manifest: dict[str, Any]
    archive: bytes
    told: list[dict[str, Any]]


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        found = find_engine(DEFAULT_VLLM)
        check_compiler(found.python)
    except (EngineMissing, UserError) as missing:
        pytest.skip(str(missing))
    return found


@pytest.fixture(scope="module")
def ml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What SageMaker would mount."""
    root = tmp_path_factory.mktemp("ml")
    shutil.copytree(TINY / "target", root / "model" / "target")
    shutil.copytree(TINY / "p-eagle", root / "model" / "drafter")
    return root


@pytest.fixture(scope="module")
def collected(engine: Engine, ml: Path, tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """A cold start, and what it compiled, fetched in parts."""
    folder = tmp_path_factory.mktemp("cold")
    container = Container(
        engine, folder, PEAGLE_WARM="collect", PEAGLE_CACHE=str(folder / "cache"),
        PEAGLE_ML_ROOT=str(ml), **COMPILED,
    )  # fmt: skip
    try:
        container.wait_until_green()
        manifest, archive = fetched(container)
        return Collected(manifest, archive, container.told())
    finally:
        container.end()


@pytest.fixture(scope="module")
def warm(
    engine: Engine, ml: Path, collected: Collected, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Container, Path]]:
    """The same on what would be another machine: nothing but the artefact beside the weights."""
    artefacts = ml / "model" / "warm"
    artefacts.mkdir()
    key = collected.manifest["key"]
    (artefacts / f"{key}.tar.gz").write_bytes(collected.archive)
    (artefacts / f"{key}.json").write_text(json.dumps(collected.manifest))
    folder = tmp_path_factory.mktemp("warm")
    cache = folder / "cache"
    container = Container(
        engine, folder, PEAGLE_CACHE=str(cache), PEAGLE_ML_ROOT=str(ml), **COMPILED
    )
    try:
        container.wait_until_green()
        yield container, cache / "warm" / key
    finally:
        container.end()


def fetched(container: Container) -> tuple[dict[str, Any], bytes]:
    """The manifest and the archive, as a client of an endpoint fetches them."""
    status, body = container.ask("POST", "/invocations", {}, attribute=WARM_ATTRIBUTE)
    assert status == 200, body
    manifest, archive = json.loads(body), b""
    while len(archive) < manifest["size"]:
        asked = {"offset": len(archive), "length": PART_BYTES}
        status, part = container.ask("POST", "/invocations", asked, attribute=WARM_ATTRIBUTE)
        assert status == 200, part
        archive += part
    return manifest, archive


def seconds_to_healthy(told: list[dict[str, Any]]) -> float:
    (healthy,) = [line for line in told if line.get("event") == "healthy"]
    return float(healthy["seconds"])


def test_what_a_cold_start_compiled_can_be_fetched(collected: Collected, tmp_path: Path) -> None:
    manifest, archive, told = collected

    assert manifest["sha256"] == hashlib.sha256(archive).hexdigest()
    assert manifest["seconds_cold"] == pytest.approx(seconds_to_healthy(told), abs=2)
    assert manifest["subject"]["engine"]["SM_VLLM_MODEL"] == "/opt/ml/model/target"
    (tmp_path / "archive").write_bytes(archive)
    with tarfile.open(tmp_path / "archive") as opened:
        members = opened.getmembers()
    assert len(members) == manifest["files"]
    assert sum(member.size for member in members) == manifest["unpacked_bytes"]
    assert {member.name.split("/")[0] for member in members} == {"inductor", "vllm"}
    assert any(member.name.endswith(".so") for member in members)
    assert not any(member.name.endswith(".safetensors") for member in members)


def test_a_start_from_the_artefact_is_faster(
    warm: tuple[Container, Path], collected: Collected
) -> None:
    container, _ = warm
    told = container.told()

    (start,) = [line for line in told if line.get("event") == "warm-start"]
    assert start["key"] == collected.manifest["key"]
    assert start["files"] == collected.manifest["files"]
    cold, seconds = seconds_to_healthy(collected.told), seconds_to_healthy(told)
    assert seconds < AT_MOST * cold, f"{seconds} s, and cold {cold} s"


def test_nothing_is_compiled_that_the_artefact_holds(warm: tuple[Container, Path]) -> None:
    container, place = warm

    before = json.loads((place / "restored.json").read_text())
    assert before["sha256"]
    packed = {name for name in names(place) if is_older(place / name, place / "restored.json")}
    new = {name for name in names(place) - packed if name.endswith((".so", ".cpp"))}
    assert new == set()
    said = " ".join(line["message"] for line in container.told())
    assert "Compiling model again" not in said
    assert "saved AOT compiled function" not in said


def test_its_drafts_are_accepted(warm: tuple[Container, Path]) -> None:
    container, _ = warm
    prompt = "def nsmallest(n, iterable, key=None):\n"
    body = {"prompt": prompt, "max_tokens": 64, "temperature": 0, "ignore_eos": True}

    assert container.ask("POST", "/invocations", body)[0] == 200

    _, counters = container.ask("POST", "/invocations", {}, attribute=COUNTERS_ATTRIBUTE)
    assert json.loads(counters)["accepted_tokens"] > 0


def names(folder: Path) -> set[str]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix() for file in files}


def is_older(file: Path, other: Path) -> bool:
    return file.stat().st_mtime < other.stat().st_mtime
