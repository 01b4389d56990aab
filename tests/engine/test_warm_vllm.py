"""Warm starts with real vLLM: what one engine compiled is collected, stored, and restored."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from peagle.engine.installed import check_compiler, find_engine
from peagle.errors import EngineMissing, UserError
from tests.support import Peagle

pytestmark = [pytest.mark.engine, pytest.mark.sandbox]

BUCKET, PREFIX = "models", "tiny/"
IN_S3 = ("--model-source", f"s3://{BUCKET}/{PREFIX}target/",
         "--drafter", f"s3://{BUCKET}/{PREFIX}drafter/")  # fmt: skip
NAME = "quick"


@pytest.fixture(scope="module", autouse=True)
def own_place(tmp_path_factory: pytest.TempPathFactory, peagle: Peagle) -> Iterator[Path]:
    """A home for this module, and caches of its own; nothing runs in it afterwards."""
    try:
        check_compiler(find_engine("0.28.0").python)
    except (EngineMissing, UserError) as missing:
        pytest.skip(str(missing))
    home = tmp_path_factory.mktemp("warm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_HOME", str(home))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield home
        peagle("local", "down", "--all", "--now")
        assert peagle("sandbox", "stop").returncode == 0


@pytest.fixture(scope="module")
def told(peagle: Peagle) -> Any:
    """The JSON of a command that succeeds in the sandbox."""

    def run(*arguments: str) -> Any:
        done = peagle(*arguments, "--sandbox", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def s3(told: Any, peagle: Peagle) -> Any:
    """The sandbox's S3, with the pair as `peagle weights sync` leaves it."""
    told("weights", "sync", "tiny", f"s3://{BUCKET}/{PREFIX}", "--yes")
    variables = json.loads(peagle("sandbox", "env", "--json").stdout)
    return boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
    )


@pytest.fixture(scope="module")
def warmed(s3: Any, told: Any) -> Any:
    """What `peagle warm` printed."""
    return told("warm", "tiny", *IN_S3, "--name", NAME, "--yes")


def below_warm(s3: Any) -> dict[str, int]:
    found = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}warm/")
    return {Path(entry["Key"]).name: entry["Size"] for entry in found["Contents"]}


def test_what_was_compiled_lies_beside_the_weights_and_the_endpoint_is_gone(
    warmed: Any, s3: Any, told: Any, peagle: Peagle
) -> None:
    there = below_warm(s3)

    assert set(there) == {f"{warmed['key']}.tar.gz", f"{warmed['key']}.json"}
    assert there[f"{warmed['key']}.tar.gz"] == warmed["bytes"] > 10_000
    assert warmed["files"] > 10
    assert warmed["stand_in"] is None
    assert told("list") == {"deployments": []}
    assert json.loads(peagle("sandbox", "status", "--json").stdout)["endpoints"] == []


def test_deploying_from_that_prefix_restores_it_and_drafts(
    warmed: Any, told: Any, peagle: Peagle
) -> None:
    document = told("deploy", "tiny", *IN_S3, "--name", NAME, "--yes")

    log = peagle("logs", NAME, "--sandbox").stdout
    assert f"warm start: restored {warmed['files']} files" in log
    assert warmed["key"] in log
    assert document["acceptance_length"] >= document["acceptance_floor"] > 1
    told("destroy", NAME, "--yes")


def test_an_engine_of_this_machine_restores_the_same_artefact(
    warmed: Any, s3: Any, own_place: Path, peagle: Peagle, tmp_path: Path
) -> None:
    """With caches of its own, as on another machine."""
    (own_place / "warm").mkdir()
    for name in below_warm(s3):
        s3.download_file(BUCKET, f"{PREFIX}warm/{name}", str(own_place / "warm" / name))

    caches = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = peagle("local", "up", "tiny", "--compile", env=caches)

    assert done.returncode == 0, done.stderr
    log = peagle("local", "logs", "peagle-tiny").stdout
    assert f"warm start: restored {warmed['files']} files" in log
