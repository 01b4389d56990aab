"""Other bytes in a folder of weights are another model, in the requests and in every format."""

import os
import shutil
from pathlib import Path

import pytest

from peagle.checkpoints import contents
from peagle.checkpoints.contents import files_below, watch_hashing
from peagle.data import data_folder
from peagle.deploy.diff import compare_served
from peagle.deploy.preflight import desired_state
from peagle.errors import Refused
from peagle.planning import Plan
from peagle.render.dashboard import dashboard_body
from peagle.render.requests import requests
from peagle.weights.own_target import plan_pair
from tests.support import raises_code
from tests.unit.rendering.plans import BUCKET, CATALOG, ROLE

OTHER = "README.md"


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A head of the user's own."""
    folder = tmp_path / "head"
    shutil.copytree(data_folder("model_catalog") / "peagle" / "tiny" / "p-eagle", folder)
    (folder / OTHER).write_text("a")
    return folder


def plan_of_folder(head: Path) -> Plan:
    return plan_pair("tiny", {"drafter": str(head)}, CATALOG)


@pytest.mark.thorough
def test_one_changed_byte_is_another_model_in_another_folder(head: Path) -> None:
    first = plan_of_folder(head)
    (head / OTHER).write_text("b")
    other = plan_of_folder(head)
    names = [requests(plan)[0].parameters["ModelName"] for plan in (first, other)]
    (before,), (after,) = first.mounts, other.mounts
    assert len(set(names)) == 2
    assert before.s3_uri != after.s3_uri
    start = "s3://${ModelBucket}/peagle-toolkit/peagle-tiny-own."
    assert before.s3_uri.startswith(start)
    assert other.drafter is not None
    assert other.drafter.weights is not None
    assert other.drafter.weights.s3_uri == f"{after.s3_uri}drafter/"
    assert other.target.weights.s3_uri == f"{after.s3_uri}target/"


def test_a_plan_of_other_files_is_not_deployed(head: Path) -> None:
    plan = plan_of_folder(head)
    (head / OTHER).write_text("b")
    with raises_code("weights-changed", Refused) as refused:
        desired_state(plan, ROLE, BUCKET)
    assert str(head) in refused.value.message


@pytest.mark.thorough
def test_the_prefix_is_of_the_files_wherever_they_are(head: Path, tmp_path: Path) -> None:
    plan, elsewhere = plan_of_folder(head), tmp_path / "another-checkout" / head.name
    shutil.copytree(head, elsewhere)
    other = plan_of_folder(elsewhere)
    assert other.mounts == plan.mounts
    desired = [desired_state(each, ROLE, BUCKET) for each in (plan, other)]
    assert desired[0].revision.fingerprint == desired[1].revision.fingerprint
    assert compare_served(*(state.revision.served for state in desired)) == ()
    assert dashboard_body(plan) == dashboard_body(other)


def test_a_hash_is_kept_until_the_file_changes(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEAGLE_HOME", str(own_home))
    folder = tmp_path / "weights"
    folder.mkdir()
    file = folder / "model.safetensors"
    file.write_bytes(bytes(contents._MIN_CACHED_BYTES))
    read = []

    def computed(path: Path, size: int) -> str:
        read.append(path)
        return original(path, size)

    original = contents._computed
    monkeypatch.setattr(contents, "_computed", computed)
    (first,), (again,) = files_below(folder), files_below(folder)
    assert (first, len(read)) == (again, 1)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_bytes(b"1" * contents._MIN_CACHED_BYTES)
    os.utime(file, ns=times)
    (other,) = files_below(folder)
    assert (other.sha256 != first.sha256, len(read)) == (True, 2), "its time of change tells"
    (own_home / "contents.json").write_text("{ damaged")
    assert files_below(folder) == (other,)


def test_hashing_a_large_file_reports_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle.checkpoints.contents._STEP_BYTES", 2**20)
    (tmp_path / "small.json").write_text("{}")
    (tmp_path / "weights.safetensors").write_bytes(bytes(2**21 + 5))
    heard: list[tuple[str, int, int]] = []
    with watch_hashing(lambda *step: heard.append(step)):
        files_below(tmp_path)
    size = 2**21 + 5
    assert heard == [("weights.safetensors", 2**20, size), ("weights.safetensors", 2**21, size)]
