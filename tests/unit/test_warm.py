"""An artifact is fetched completely or not at all, whatever the transport does."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from peagle.engine_log import WarmStart, warm_start_in
from peagle.errors import CloudError, EngineError, PeagleError, Refused, UserError
from peagle.warm import PART_BYTES, PAUSES, WarmArtifact, WarmReply, fetch
from tests.packed import KEY, Packed
from tests.support import raises_code


class Waiting:
    """Records the pauses instead of waiting."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)


def fetched(packed: Packed, folder: Path) -> WarmArtifact:
    return fetch(packed.answer, folder, sleep=Waiting())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_both_files_arrive_as_the_container_has_them(tmp_path: Path) -> None:
    packed, progress = Packed(), []
    artifact = fetch(packed.answer, tmp_path / "new", lambda *done: progress.append(done))
    assert artifact.archive.read_bytes() == packed.content
    assert artifact.manifest.read_bytes() == packed.document
    assert names(tmp_path / "new") == [f"{KEY}.json", f"{KEY}.tar.gz"]
    assert (artifact.key, artifact.files, artifact.seconds_cold) == (KEY, 12, 132.5)
    assert [part["length"] for part in packed.requests[1:]] == [PART_BYTES, 1000]
    assert progress == [(0, artifact.bytes), (PART_BYTES, artifact.bytes), (artifact.bytes,) * 2]


def test_the_containers_user_may_read_the_files(tmp_path: Path) -> None:
    artifact = fetched(Packed(), tmp_path)
    assert artifact.archive.stat().st_mode & 0o777 == 0o644
    assert artifact.manifest.stat().st_mode & 0o777 == 0o644


def test_an_artifact_with_the_same_key_is_replaced(tmp_path: Path) -> None:
    fetched(Packed(b"old"), tmp_path)
    artifact = fetched(Packed(b"newer"), tmp_path)
    assert artifact.archive.read_bytes() == b"newer"
    assert json.loads(artifact.manifest.read_bytes())["size"] == 5
    assert len(names(tmp_path)) == 2


def test_an_interrupted_replacement_leaves_no_old_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched(Packed(b"old"), tmp_path)
    replace = Path.replace

    def replace_and_end(path: Path, target: Path) -> None:
        replace(path, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", replace_and_end)
    with pytest.raises(KeyboardInterrupt):
        fetched(Packed(b"newer"), tmp_path)
    monkeypatch.setattr(Path, "replace", replace)
    assert names(tmp_path) == [f"{KEY}.tar.gz"], "without a manifest it is no artifact"
    assert fetched(Packed(b"newer"), tmp_path).archive.read_bytes() == b"newer"
    assert len(names(tmp_path)) == 2


BROKEN: list[WarmReply | BaseException] = [
    WarmReply(200, b"too short"),
    WarmReply(503, b'{"error": "draining"}'),
    CloudError("AWS still throttles", code="ThrottlingException"),
]


@pytest.mark.parametrize("fault", BROKEN, ids=["truncated", "503", "throttled"])
def test_an_incomplete_response_is_retried_after_pauses(
    tmp_path: Path, fault: WarmReply | BaseException
) -> None:
    packed, waiting = Packed(), Waiting()
    packed.faults = [None, fault, fault]
    artifact = fetch(packed.answer, tmp_path, sleep=waiting)
    assert artifact.archive.read_bytes() == packed.content
    assert waiting.pauses == list(PAUSES[:2])


@pytest.mark.parametrize(("fault", "kind", "code", "reason"), [
    (WarmReply(200, b"short"), EngineError, "incomplete-response", "5 of 4,194,304 bytes"),
    (WarmReply(500, b'{"error": "no space left"}'), EngineError, "collection-failed",
     "no space left"),
    (CloudError("throttled"), CloudError, "cloud", "throttled"),
])  # fmt: skip
def test_repeated_failures_end_with_the_reason_and_leave_nothing(
    tmp_path: Path, fault: WarmReply | BaseException,
    kind: type[PeagleError], code: str, reason: str,
) -> None:  # fmt: skip
    packed, waiting = Packed(), Waiting()
    packed.faults = [None, *[fault] * 20]
    with raises_code(code, kind) as failed:
        fetch(packed.answer, tmp_path, sleep=waiting)
    assert reason in failed.value.message
    assert waiting.pauses == list(PAUSES)
    assert names(tmp_path) == []


def test_a_wrong_checksum_is_an_error_and_keeps_the_old_artifact(tmp_path: Path) -> None:
    old = fetched(Packed(b"old"), tmp_path)
    packed = Packed(b"new", manifest={"sha256": hashlib.sha256(b"other").hexdigest()})
    with raises_code("checksum-mismatch", EngineError):
        fetched(packed, tmp_path)
    assert old.archive.read_bytes() == b"old"
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), AssertionError("a bug")])
def test_an_interrupt_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    packed = Packed()
    packed.faults = [None, None, error]
    with pytest.raises(type(error)):
        fetched(packed, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("answer", "code", "reason"), [
    (WarmReply(409, b'{"error": "eager mode"}'), "nothing-compiled", "eager mode"),
    (WarmReply(403, b'{"error": {"message": "warm is off"}}'), "image-too-old", "warm is off"),
    (WarmReply(400, b"Expecting value"), "image-too-old", "400: Expecting value"),
    (WarmReply(404, b""), "image-too-old", "404: empty response"),
])  # fmt: skip
def test_a_refusal_of_the_container_is_not_retried(
    tmp_path: Path, answer: WarmReply, code: str, reason: str
) -> None:
    packed, waiting = Packed(), Waiting()
    packed.faults = [answer]
    with raises_code(code, Refused) as refused:
        fetch(packed.answer, tmp_path, sleep=waiting)
    assert reason in refused.value.message
    assert waiting.pauses == []
    assert names(tmp_path) == []


def test_too_little_disk_space_is_detected_first(tmp_path: Path) -> None:
    packed = Packed(manifest={"size": 10**18})
    with raises_code("disk-full", UserError) as refused:
        fetched(packed, tmp_path / "not" / "there")
    assert "the artifact needs" in refused.value.message
    assert len(packed.requests) == 1
    assert names(tmp_path) == []


RESTORED = {"event": "warm-start", "restored": True, "key": KEY, "files": 4,
            "unpacked_bytes": 100_000, "seconds": 0.01, "seconds_cold": 70}  # fmt: skip
NOT_RESTORED = {"event": "warm-start", "restored": False, "reason": "the image is another"}


def entry(**fields: object) -> str:
    """A line of the container's log."""
    shown = {"time": "t", "level": "INFO", "stage": "checking", "message": "a warm start", **fields}
    return json.dumps(shown)


def test_the_log_reports_a_warm_start() -> None:
    assert warm_start_in(["Hello", entry(event="starting")]) is None
    restored, cold_start = entry(**RESTORED), entry(**NOT_RESTORED)
    start = warm_start_in([cold_start, restored, "INFO warm start: (key none)"])
    cold = warm_start_in([restored, cold_start])
    assert start is not None
    assert cold is not None
    what = f"restored 4 files, 0.1 MB in 0.01 s (key {KEY}; a cold start takes 70 s)"
    assert start == WarmStart(True, KEY, what)
    assert cold == WarmStart(False, None, "the image is another")


def test_lines_of_the_engine_do_not_count() -> None:
    line = json.dumps({"time": "t", "message": f"(key {KEY})", "from": "engine"})
    assert warm_start_in([line, f"serve: warm start: (key {KEY})"]) is None


@pytest.mark.parametrize("change", [
    {"size": -1}, {"size": "9"}, {"size": 1.5}, {"size": True}, {"size": 10**30}, {"size": None},
    {"files": [1]}, {"unpacked_bytes": {}}, {"seconds_cold": "soon"}, {"seconds_cold": [1]},
    {"format": "1"}, {"format": [1]}, {"key": 7}, {"key": "../../etc"}, {"key": KEY.upper()},
    {"sha256": ["a"]}, {"sha256": "0" * 63}, None, [], 7, "x",
])  # fmt: skip
def test_a_manifest_of_another_form_is_an_error_with_a_fix(change: Any, tmp_path: Path) -> None:
    packed = Packed()
    described = json.loads(packed.document)
    document = described | change if isinstance(change, dict) else change
    for content in (json.dumps(document).encode(), packed.document[:-9], b"\xff", b"[" * 100_000):
        answer = WarmReply(200, content)
        with raises_code("manifest-format", Refused) as refused:
            fetch(lambda _, answer=answer: answer, tmp_path, sleep=Waiting())  # type: ignore[misc]
        assert refused.value.command
    assert names(tmp_path) == []
