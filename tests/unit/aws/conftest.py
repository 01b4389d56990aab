"""Fixtures: a fake account, moto's account, a folder of weights."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.retries.standard import ExponentialBackoff
from moto import mock_aws
from moto.s3 import urls
from moto.s3.models import S3Backend

from peagle.aws.client import Aws, Keys, connect
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import World

# moto reloads the module at every use, in case a variable has changed: a tenth of the time here.
S3Backend._url_module = urls  # type: ignore[method-assign, assignment]


@pytest.fixture(autouse=True, scope="module")
def _retries_at_once() -> Iterator[None]:
    """botocore repeats a call as often as ever, without its seconds in between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExponentialBackoff, "delay_amount", lambda backoff, context: 0.0)
        yield


@pytest.fixture
def world(plain_writes: None) -> World:
    """An empty fake account, and a home without records."""
    return World()


@pytest.fixture
def updated(world: World) -> tuple[str, str]:
    """The configurations before and after a proved update."""
    world.deploy(a_plan())
    before = world.serves()
    world.deploy(another(a_plan()))
    return before, world.serves()


@pytest.fixture
def plain_writes(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are written without renaming, which takes half of the time of these tests; what it
    is good for is tested in ``test_store.py``. Nor is a file emptied before it is written: ext4
    then waits for the disk."""

    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        with path.open("r+") as file:
            file.write(text)
            file.truncate()

    monkeypatch.setattr("peagle.deploy.records.write_text", write)


@functools.cache
def moto_connection(region: str = "us-east-1") -> Aws:
    """A connection whose clients are created once: that takes longer than most tests."""
    return connect(region, keys=Keys("testing", "testing"))


@pytest.fixture
def aws(own_home: Path) -> Iterator[Aws]:
    """An account of moto with the bucket ``models``."""
    with mock_aws():
        aws = moto_connection()
        aws.call("s3", "create_bucket", Bucket="models")
        yield aws


@pytest.fixture
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of weights."""
    folder = tmp_path_factory.mktemp("head")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "junk").write_text("not weights")
    return folder
