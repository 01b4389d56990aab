"""The sandbox offers the instance types of the user's own catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.data import data_folder
from tests.sandbox.sandboxes import Account, Sandbox
from tests.unit.catalog.test_extension_points import NEW_INSTANCE, NEW_TYPE

pytestmark = pytest.mark.sandbox

NAME = "peagle-tiny"
TINY = ("tiny", "--instance-type", NEW_TYPE)


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A catalogue with an instance type that botocore does not know."""
    table = (data_folder("model_catalog") / "instances.yaml").read_text(encoding="utf-8")
    (tmp_path / "instances.yaml").write_text(f"{table}{NEW_INSTANCE}", encoding="utf-8")
    return str(tmp_path)


def test_it_is_deployed_and_removed(sandbox: Sandbox, own: str) -> None:
    done = sandbox.peagle("--catalog", own, "deploy", *TINY, "--sandbox", "--yes")

    assert done.returncode == 0, done.stderr
    client = Account(sandbox).sagemaker
    (config,) = client.list_endpoint_configs()["EndpointConfigs"]
    found = client.describe_endpoint_config(EndpointConfigName=config["EndpointConfigName"])
    assert found["ProductionVariants"][0]["InstanceType"] == NEW_TYPE
    assert sandbox.json("status", NAME, "--sandbox")["instance_type"] == NEW_TYPE
    assert sandbox.peagle("destroy", NAME, "--sandbox", "--yes").returncode == 0


def test_copies_use_all_gpus_of_it(sandbox: Sandbox, own: str) -> None:
    table = Path(own) / "instances.yaml"
    entry = NEW_INSTANCE.replace("gpu_count: 1", "gpu_count: 4")
    table.write_text(table.read_text().replace(NEW_INSTANCE, entry))

    done = sandbox.peagle(
        "--catalog", own, "deploy", *TINY, "--copies", "2", "--sandbox", "--yes"
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    (component,) = Account(sandbox).sagemaker.list_inference_components()["InferenceComponents"]
    assert component["InferenceComponentStatus"] == "InService"
    assert sandbox.peagle("destroy", NAME, "--sandbox", "--yes").returncode == 0
