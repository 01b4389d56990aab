"""What a container restores or collects, without the entrypoint as a process."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from peagle_serve import warm
from peagle_serve.contract import AUTO, COLLECT, InvalidEnvironment
from peagle_serve.logs import Log, Redactor
from peagle_serve.warm import FOLDERS, Manifest, UnknownDevice, compute_key, prepare
from tests.unit.containers.artifacts import SUBJECT, artifact, files_in, filled, write

CPU = {**SUBJECT, "device": {"cpu": "a CPU", "instructions": "5" * 64}}
OTHER = {**SUBJECT, "image": "another", "software": "6" * 64}
NEAR = {**SUBJECT, "image": "another"}


class Start:
    """A start with artifacts below ``folder``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.artifacts, self.cache = folder / "artifacts", folder / "cache" / "warm"
        self.artifacts.mkdir()
        self._log = folder / "log"
        self._monkeypatch = monkeypatch
        self.environment = {
            "PEAGLE_WARM_FOLDER": str(self.artifacts),
            "PEAGLE_CACHE": str(folder / "cache"),
            "PEAGLE_WARM_SHA256": "any",
        }

    def run(
        self, subject: Any = SUBJECT, mode: str = AUTO, **more: str
    ) -> tuple[dict[str, str], list[Mapping[str, Any]]]:
        """The engine's variables, and the lines of the log."""

        def make_subject(*environments: Mapping[str, str]) -> Any:
            if isinstance(subject, Exception):
                raise subject
            return subject

        self._monkeypatch.setattr(warm, "make_subject", make_subject)
        self._log.write_bytes(b"")
        descriptor = os.open(self._log, os.O_WRONLY)
        try:
            log = Log(Redactor({}), descriptor)
            variables = prepare({**self.environment, **more}, {}, mode, log)
        finally:
            os.close(descriptor)
        return variables, [json.loads(line) for line in self._log.read_text().splitlines()]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tmp_path, monkeypatch)


def test_the_artifact_of_the_subject_is_restored_and_then_found(start: Start) -> None:
    manifest = artifact(start.artifacts)
    artifact(start.artifacts, OTHER)
    variables, (line,) = start.run()
    place = start.cache / manifest.key
    assert variables == {name: str(place / below) for name, below in FOLDERS.items()}
    assert (line["event"], line["restored"], line["level"]) == ("warm-start", True, "INFO")
    assert (line["key"], line["files"]) == (manifest.key, manifest.files)
    assert (line["unpacked_bytes"], line["seconds_cold"]) == (manifest.unpacked_bytes, 101.0)
    assert line["seconds"] < 10
    again, (line,) = start.run()
    assert (again, line["seconds"]) == (variables, None)


def test_a_cold_start_of_unknown_length_is_not_compared(start: Start) -> None:
    write(start.artifacts, artifact(start.artifacts), seconds_cold=0.0)
    _, (line,) = start.run()
    assert (line["restored"], line["seconds_cold"]) == (True, None)


@pytest.mark.parametrize(("subject", "ahead"), [(SUBJECT, False), (CPU, True)])
def test_only_a_cpu_starts_without_compiling_ahead(
    start: Start, subject: dict[str, Any], ahead: bool
) -> None:
    artifact(start.artifacts, subject)
    variables, _ = start.run(subject)
    assert ("VLLM_USE_AOT_COMPILE" in variables) is ahead


def test_the_users_own_cache_is_left_alone(start: Start) -> None:
    artifact(start.artifacts)
    variables, _ = start.run(TRITON_CACHE_DIR="/mine", CUDA_CACHE_PATH="")
    assert "TRITON_CACHE_DIR" not in variables
    assert "CUDA_CACHE_PATH" in variables


def keep(manifest: Manifest, file: Path) -> None:
    """Nothing is wrong."""


def cut(manifest: Manifest, file: Path) -> None:
    archive = file.with_name(f"{manifest.key}.tar.gz")
    archive.write_bytes(archive.read_bytes()[:100])


def lose(manifest: Manifest, file: Path) -> None:
    file.with_name(f"{manifest.key}.tar.gz").unlink()


@pytest.mark.parametrize(("change", "more", "subject", "reason"), [
    (keep, {"PEAGLE_WARM_SHA256": ""}, SUBJECT, "does not say which one to restore"),
    (keep, {"PEAGLE_WARM_SHA256": "0" * 64}, SUBJECT, "does not list"),
    (keep, {"PEAGLE_WARM_FOLDER": "/no/such/folder"}, SUBJECT, "does not exist"),
    (keep, {}, UnknownDevice("no GPU here"), "no GPU here"),
    (keep, {}, RuntimeError("odd"), "RuntimeError: odd"),
    (cut, {}, SUBJECT, "does not match the sha256"),
    (lose, {}, SUBJECT, "No such file"),
])  # fmt: skip
def test_any_problem_is_a_warning_and_a_cold_start(
    start: Start, change: Any, more: dict[str, str], subject: Any, reason: str
) -> None:
    manifest = artifact(start.artifacts)
    change(manifest, start.artifacts / f"{manifest.key}.json")
    variables, (line,) = start.run(subject, **more)
    assert (variables, line["event"], line["restored"]) == ({}, "warm-start", False)
    assert line["level"] == "WARNING"
    assert reason in line["reason"]
    assert not (start.cache / manifest.key).exists()


def test_the_pin_of_the_archive_is_enough(start: Start) -> None:
    manifest = artifact(start.artifacts)
    _, (line,) = start.run(PEAGLE_WARM_SHA256=f"{'0' * 64}, {manifest.sha256}")
    assert line["restored"] is True


@pytest.mark.parametrize(("there", "differences"), [
    ((OTHER,), ["image", "software"]), ((OTHER, NEAR), ["image"]), ((CPU, NEAR), None),
])  # fmt: skip
def test_the_most_similar_artifact_is_compared(
    start: Start, there: tuple[dict[str, Any], ...], differences: list[str] | None
) -> None:
    manifests = [artifact(start.artifacts, subject) for subject in there]
    (start.artifacts / "notes.json").write_text("[]")
    variables, (line,) = start.run()
    assert (variables, line["restored"]) == ({}, False)
    assert differences is None or line["differences"] == differences
    assert any(manifest.key in line["reason"] for manifest in manifests)


@pytest.mark.parametrize(("name", "reason"), [("x.json", "no readable"), ("x.txt", "no artifact")])
def test_a_folder_without_artifacts_gives_none(start: Start, name: str, reason: str) -> None:
    (start.artifacts / name).write_text("{")
    _, (line,) = start.run()
    assert reason in line["reason"]


def test_collecting_starts_empty(start: Start) -> None:
    key = compute_key(SUBJECT)
    filled(start.cache / key)
    (start.cache / f"{key}.collected.tar.gz").touch()
    variables, (line,) = start.run(mode=COLLECT)
    assert (line["event"], line["key"], line["level"]) == ("collect", key, "INFO")
    assert files_in(start.cache) == {}
    assert variables["PEAGLE_WARM_PLACE"] == str(start.cache / key)
    assert json.loads(variables["PEAGLE_WARM_SUBJECT"]) == SUBJECT
    assert variables["VLLM_CACHE_ROOT"] == str(start.cache / key / "vllm")


@pytest.mark.parametrize("error", [UnknownDevice("none"), OSError(5, "broken")])
def test_collecting_needs_the_device(start: Start, error: Exception) -> None:
    with pytest.raises(InvalidEnvironment, match="the device is unknown"):
        start.run(error, mode=COLLECT)


def test_collecting_needs_a_folder_of_its_own(start: Start) -> None:
    start.cache.parent.mkdir()
    start.cache.write_text("a file")
    with pytest.raises(InvalidEnvironment, match="is not writable"):
        start.run(mode=COLLECT)
