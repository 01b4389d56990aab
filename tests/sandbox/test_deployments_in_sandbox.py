"""A deployment in the sandbox on an instance type of a catalogue of the user's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.data import data_folder
from tests.sandbox.sandboxes import Account, Sandbox
from tests.unit.catalog.test_catalog_pairs import NEW_INSTANCE, NEW_TYPE

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("room")]
NAME = "peagle-tiny"


@pytest.fixture(autouse=True)
def _removed(sandbox: Sandbox) -> Iterator[None]:
    """Afterwards nothing is deployed."""
    yield
    sandbox.peagle("destroy", NAME, "--sandbox", "--yes")


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
