"""One sandbox for the whole room, with an engine that does what tests tell it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.containers.weights import safetensors
from tests.unit.sandbox.sandboxes import Account, Sandbox, fake_engine, started

WEIGHTS = {"config.json": b"{}", "model.safetensors": safetensors({"a.weight": [1]})}


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with a vLLM that is not one."""
    return fake_engine(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def home(tmp_path: Path, engine: Path) -> Iterator[Sandbox]:
    """A home where no sandbox runs yet; nothing of it is left afterwards."""
    sandbox = Sandbox(tmp_path, engine)
    yield sandbox
    sandbox.peagle("sandbox", "stop")
    assert sandbox.processes() == []


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory, engine: Path) -> Iterator[Sandbox]:
    """A running sandbox."""
    with started(Sandbox(tmp_path_factory.mktemp("sandbox"), engine)) as running:
        yield running


@pytest.fixture(scope="session")
def account(sandbox: Sandbox) -> Account:
    """SageMaker in us-east-1, with weights on S3."""
    account = Account(sandbox)
    account.upload("tiny/", WEIGHTS)
    return account


@pytest.fixture
def live(account: Account) -> Iterator[str]:
    """An endpoint in service."""
    name = account.endpoint()
    assert account.settled(name)["EndpointStatus"] == "InService"
    yield name
    account.gone(name)
