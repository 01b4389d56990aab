"""Warm starts with real vLLM: what one engine compiles is collected, stored and restored, and
starts the next one."""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest

from peagle.engine.machine import Engine, check_compiler
from peagle.errors import UserError
from tests.sandbox.sandboxes import OUR_IMAGE, Account, Sandbox
from tests.support import Peagle

pytestmark = [pytest.mark.engine, pytest.mark.sandbox]
BUCKET, PREFIX = "models", "tiny/"
IN_S3 = ("--model-source", f"s3://{BUCKET}/{PREFIX}target/",
         "--drafter", f"s3://{BUCKET}/{PREFIX}drafter/",
         "--image", OUR_IMAGE)  # fmt: skip
K = "5"
"""Of all engines: a plan for a head in S3 does not know what was measured with the catalogue's."""
NAME = "quick"
AT_MOST = 0.75
"""Share of the time of a cold start, on a busy machine; on an idle one it is about a third."""


@pytest.fixture(scope="module", autouse=True)
def own_place(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory, peagle: Peagle
) -> Iterator[Path]:
    """A home and caches for this module; nothing runs in it afterwards."""
    try:
        check_compiler(engine.python)
    except UserError as missing:
        pytest.skip(str(missing))
    home = tmp_path_factory.mktemp("warm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_HOME", str(home))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield home
        peagle("local", "down", "--all", "--now")
        assert peagle("sandbox", "stop").returncode == 0


@pytest.fixture(scope="module")
def reported(peagle: Peagle) -> Any:
    """The JSON of a command that succeeds in the sandbox."""

    def run(*arguments: str) -> Any:
        done = peagle(*arguments, "--sandbox", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def s3(reported: Any, peagle: Peagle, own_place: Path, engine: Engine) -> Any:
    """The sandbox's S3, with the pair as `peagle weights sync` leaves it."""
    reported("weights", "sync", "tiny", f"s3://{BUCKET}/{PREFIX}", "--yes")
    variables = json.loads(peagle("sandbox", "env", "--json").stdout)
    Account(Sandbox(own_place, engine.python)).push(OUR_IMAGE)
    return boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
    )


@pytest.fixture(scope="module")
def warmed(s3: Any, reported: Any) -> Any:
    """The JSON of `peagle warm`: the only start in this module that compiles."""
    return reported("warm", "tiny", *IN_S3, "--k", K, "--name", NAME, "--yes")


class Stored(NamedTuple):
    """The artifact that S3 has beside the weights: a manifest and an archive."""

    manifest: dict[str, Any]
    archive: Path


@pytest.fixture(scope="module")
def stored(warmed: Any, s3: Any, own_place: Path) -> Stored:
    """The artifact, downloaded to where an engine on this machine looks for it."""
    folder = own_place / "warm"
    folder.mkdir()
    for name in below_warm(s3):
        s3.download_file(BUCKET, f"{PREFIX}warm/{name}", str(folder / name))
    manifest = json.loads((folder / f"{warmed['key']}.json").read_text())
    return Stored(manifest, folder / f"{warmed['key']}.tar.gz")


def below_warm(s3: Any) -> dict[str, int]:
    listing = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}warm/")
    return {Path(entry["Key"]).name: entry["Size"] for entry in listing["Contents"]}


def test_the_artifact_is_stored_beside_the_weights_and_the_endpoint_is_deleted(
    warmed: Any, s3: Any, reported: Any, peagle: Peagle
) -> None:
    there = below_warm(s3)
    assert set(there) == {f"{warmed['key']}.tar.gz", f"{warmed['key']}.json"}
    assert there[f"{warmed['key']}.tar.gz"] == warmed["bytes"] > 10_000
    assert warmed["files"] > 10
    assert warmed["stand_in"] is None
    assert reported("list")["deployments"] == []
    assert json.loads(peagle("sandbox", "status", "--json").stdout)["endpoints"] == []


def test_the_archive_holds_compiled_code_and_no_weights(warmed: Any, stored: Stored) -> None:
    manifest, archive = stored
    assert manifest["key"] == warmed["key"]
    assert manifest["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert manifest["subject"]["engine"]["SM_VLLM_MODEL"].startswith("/opt/ml/")
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
    assert len(members) == manifest["files"] == warmed["files"]
    assert sum(member.size for member in members) == manifest["unpacked_bytes"]
    assert {member.name.split("/")[0] for member in members} == {"inductor", "vllm"}
    assert any(member.name.endswith(".so") for member in members)
    assert not any(member.name.endswith(".safetensors") for member in members)


def test_a_deploy_from_that_prefix_restores_the_artifact_and_drafts(
    warmed: Any, reported: Any, peagle: Peagle
) -> None:
    document = reported("deploy", "tiny", *IN_S3, "--k", K, "--name", NAME, "--yes")
    log = peagle("logs", NAME, "--sandbox").stdout
    assert f"warm start: restored {warmed['files']} files" in log
    assert warmed["key"] in log
    assert document["acceptance_length"] >= document["acceptance_floor"] > 1
    reported("destroy", NAME, "--yes")


@pytest.fixture(scope="module")
def local(
    stored: Stored, peagle: Peagle, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], Path]:
    """The log of an engine on this machine with empty caches, as on another machine, and the folder
    of the restored caches."""
    caches = tmp_path_factory.mktemp("other")
    done = peagle("local", "up", "tiny", "--k", K, "--compile", "--json",
                  env={**os.environ, "XDG_CACHE_HOME": str(caches)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = Path(json.loads(done.stdout)["log"]).read_text(encoding="utf-8").splitlines()
    (mark,) = caches.rglob("restored.json")
    return [json.loads(line) for line in lines if line.startswith("{")], mark.parent


def event(log: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (match,) = [line for line in log if line.get("event") == name]
    return match


def test_an_engine_on_this_machine_restores_the_same_artifact_and_starts_faster(
    stored: Stored, local: tuple[list[dict[str, Any]], Path]
) -> None:
    log, _ = local
    start = event(log, "warm-start")
    assert (start["key"], start["files"]) == (stored.manifest["key"], stored.manifest["files"])
    cold, seconds = stored.manifest["seconds_cold"], event(log, "healthy")["seconds"]
    assert seconds < AT_MOST * cold, f"{seconds} s, and cold {cold} s"


def test_nothing_in_the_artifact_is_compiled_again(
    local: tuple[list[dict[str, Any]], Path],
) -> None:
    log, place = local
    mark = place / "restored.json"
    assert json.loads(mark.read_text())["sha256"]
    restored = mark.stat().st_mtime
    compiled = [file for file in place.rglob("*") if file.suffix in (".so", ".cpp")]
    assert compiled
    assert [file for file in compiled if file.stat().st_mtime >= restored] == []
    text = " ".join(line["message"] for line in log)
    assert "Compiling model again" not in text
    assert "saved AOT compiled function" not in text
