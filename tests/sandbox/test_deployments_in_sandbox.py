"""Deployments in the sandbox: proofs, updates, failed starts, capacity, own catalogues."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from peagle.data import data_folder
from tests.sandbox.sandboxes import Account, Sandbox, until
from tests.unit.catalog.test_catalog_pairs import NEW_INSTANCE, NEW_TYPE

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("room")]
NAME = "peagle-tiny"
TYPE = "ml.g5.xlarge"
DEPLOY = ("deploy", "tiny", "--instance-type", TYPE, "--sandbox", "--yes")


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


@pytest.fixture
def account(sandbox: Sandbox) -> Account:
    return Account(sandbox)


FAILING = ("--env", "VLLM_FAKE_ENGINE=out-of-memory")


def _endpoints(account: Account) -> dict[str, str]:
    listed = account.sagemaker.list_endpoints()["Endpoints"]
    return {endpoint["EndpointName"]: endpoint["EndpointStatus"] for endpoint in listed}


def test_a_fatal_line_ends_the_deploy_and_nothing_remains(account: Account) -> None:
    done = account.sandbox.peagle(*DEPLOY, *FAILING, "--json")
    assert done.returncode == 4
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    cause = f"endpoint {NAME} will never serve: torch.OutOfMemoryError: CUDA out of memory"
    assert lines.index(cause) < lines.index(f"Removing | Endpoint {NAME}")
    assert "non-default args" not in done.stderr
    error = json.loads(lines[-1])["error"]
    assert error["code"] == "will-not-serve"
    assert error["message"].startswith(f"{cause}; removed")
    assert _endpoints(account) == {}
    assert account.sagemaker.list_models()["Models"] == []
    assert account.s3.list_buckets()["Buckets"] == []
    assert account.sandbox.json("list", "--sandbox")["deployments"] == []


TINY = ("tiny", "--instance-type", NEW_TYPE)


@pytest.fixture
def custom_catalog(tmp_path: Path) -> str:
    """A catalogue with an instance type that botocore does not know."""
    table = (data_folder("model_catalog") / "instances.yaml").read_text(encoding="utf-8")
    (tmp_path / "instances.yaml").write_text(f"{table}{NEW_INSTANCE}", encoding="utf-8")
    return str(tmp_path)


def test_it_is_deployed_and_removed(sandbox: Sandbox, custom_catalog: str) -> None:
    done = sandbox.peagle("--catalog", custom_catalog, "deploy", *TINY, "--sandbox", "--yes")
    assert done.returncode == 0, done.stderr
    client = Account(sandbox).sagemaker
    (config,) = client.list_endpoint_configs()["EndpointConfigs"]
    description = client.describe_endpoint_config(EndpointConfigName=config["EndpointConfigName"])
    assert description["ProductionVariants"][0]["InstanceType"] == NEW_TYPE
    assert sandbox.json("status", NAME, "--sandbox")["instance_type"] == NEW_TYPE


def test_top_shows_requests_and_drafts(sandbox: Sandbox) -> None:
    sandbox.json("deploy", "tiny", "--sandbox", "--yes", "--name", "watched")

    def asked_in(document: dict[str, Any]) -> float:
        """The window begins with the endpoint."""
        return float((document["requests_per_minute"] or 0) * document["window_seconds"] / 60)

    before = until(
        lambda: sandbox.json("top", "watched", "--sandbox"),
        lambda row: asked_in(row) > 7.5,  # all of the proof: four conversations of two turns
    )
    for _ in range(4):
        sandbox.json("invoke", "watched", "Hello", "--sandbox", "--max-tokens", "40")
    now = until(
        lambda: sandbox.json("top", "watched", "--sandbox"),
        lambda row: asked_in(row) - asked_in(before) > 3.5 and row["acceptance_length"],
        seconds=30,
    )
    assert asked_in(now) - asked_in(before) == pytest.approx(4, abs=0.1)
    assert (now["where"], now["state"], now["instances"]) == ("sandbox", "InService", 1)
    assert now["acceptance_length"] == 2.5
    assert 0 < now["ttft_p50"] < 5
    shown = sandbox.peagle("top", "watched", "--sandbox", "--once")
    assert shown.returncode == 0
    assert "2.50 tokens per step" in shown.stdout
    assert "per million output tokens on AWS" in shown.stdout
