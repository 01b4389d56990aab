"""``peagle deploy`` and ``peagle prove`` of AWS's plain image, from the log of every instance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peagle.sandbox.client import set_quota
from tests.sandbox.sandboxes import Sandbox

pytestmark = pytest.mark.sandbox

NAME = "peagle-tiny"
TYPE = "ml.g5.xlarge"
DEPLOY = ("deploy", "tiny", "--instance-type", TYPE, "--sandbox", "--yes")
TWO = ("--instance-count", "2")


@pytest.fixture(scope="module", autouse=True)
def _quota(sandbox: Sandbox) -> Iterator[None]:
    with sandbox.at_home():
        set_quota(TYPE, 20)
        yield
        set_quota(TYPE, 2)


@pytest.fixture(autouse=True)
def _removed(sandbox: Sandbox) -> Iterator[None]:
    """Afterwards nothing is deployed."""
    yield
    sandbox.peagle("destroy", NAME, "--sandbox", "--yes")


@contextmanager
def engine_file(sandbox: Sandbox, file: str, content: str = "") -> Iterator[None]:
    """A file beside the stand-in for vLLM, which changes what it counts."""
    (package,) = sandbox.engine.parent.glob("packages/vllm/entrypoints/openai")
    path = Path(package) / file
    path.write_text(content)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def test_two_instances_are_proved_each_by_its_log_stream(sandbox: Sandbox) -> None:
    document = sandbox.json(*DEPLOY, *TWO)

    proof = document["proof"]
    assert (document["state"], proof["source"], proof["instance_count"]) == ("InService", "log", 2)
    streams = [one["stream"] for one in proof["instances"]]
    assert len({*streams}) == 2
    assert all(stream.startswith("AllTraffic/i-") for stream in streams)
    assert all(one["drafts"] >= 100 and one["passed"] for one in proof["instances"])


def test_an_instance_that_drafts_nothing_fails_the_proof_and_is_named(sandbox: Sandbox) -> None:
    with engine_file(sandbox, "silent"):
        done = sandbox.peagle(*DEPLOY, *TWO, "--json")

    assert done.returncode == 3, done.stderr
    (silent,) = [one for one in json.loads(done.stdout)["proof"]["instances"] if not one["drafts"]]
    assert f"{silent['stream']} responds but drafts nothing" in done.stderr


def test_prove_is_a_gate(sandbox: Sandbox) -> None:
    assert sandbox.peagle(*DEPLOY).returncode == 0
    proved = sandbox.json("prove", NAME, "--sandbox")
    assert (proved["passed"], proved["source"], proved["drafts"] >= 100) == (True, "log", True)

    above = sandbox.peagle("prove", NAME, "--floor", "3", "--sandbox", "--json")
    assert above.returncode == 3
    assert json.loads(above.stdout)["passed"] is False
    assert json.loads(above.stderr.splitlines()[-1])["error"]["code"] == "not-proved"
    assert sandbox.json("status", NAME, "--sandbox")["state"] == "InService", "another standard"

    with engine_file(sandbox, "acceptance", "1.3"):
        worse = sandbox.peagle("prove", NAME, "--sandbox")
    assert worse.returncode == 3
    assert f"{NAME} is not proved: acceptance length 1.3" in worse.stdout
    assert sandbox.json("status", NAME, "--sandbox")["state"] == "Unproved"
    assert sandbox.peagle("prove", NAME, "--sandbox").returncode == 0
    assert sandbox.json("status", NAME, "--sandbox")["state"] == "InService"
