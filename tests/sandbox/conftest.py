"""One sandbox per test process, whose engine is a fake that the tests control."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.sandbox.client import set_quota
from tests.sandbox.clients import shared_clients
from tests.sandbox.sandboxes import (
    INSTANCE_TYPE,
    OUR_IMAGE,
    WEIGHTS,
    Account,
    Sandbox,
    fake_engine,
    started,
)


@pytest.fixture(scope="module", autouse=True)
def _shared_clients() -> Iterator[None]:
    with shared_clients():
        yield


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with a fake vLLM."""
    return fake_engine(tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="session")
def shared_sandbox(tmp_path_factory: pytest.TempPathFactory, engine: Path) -> Iterator[Sandbox]:
    """A running sandbox for all modules; starting one takes seconds."""
    with started(Sandbox(tmp_path_factory.mktemp("sandbox"), engine)) as running:
        yield running


@pytest.fixture(scope="module")
def sandbox(shared_sandbox: Sandbox) -> Sandbox:
    """The running sandbox, empty at the start of every module."""
    shared_sandbox.reset()
    return shared_sandbox


@pytest.fixture(scope="module")
def account(sandbox: Sandbox) -> Account:
    """SageMaker in us-east-1, with weights in S3 and an image of the toolkit's."""
    account = Account(sandbox)
    account.upload("tiny/", WEIGHTS)
    account.push(OUR_IMAGE)
    return account


@pytest.fixture
def room(sandbox: Sandbox) -> Iterator[None]:
    """Quotas for all that a test starts; its commands and clients reach the sandbox."""
    types = (INSTANCE_TYPE, "ml.g5.xlarge")
    with sandbox.at_home():
        for instance_type in types:
            set_quota(instance_type, 40)
        yield
        for instance_type in types:
            set_quota(instance_type, 2)


@pytest.fixture
def home(tmp_path: Path, engine: Path) -> Iterator[Sandbox]:
    """A home without a running sandbox; afterwards nothing is left running."""
    sandbox = Sandbox(tmp_path, engine)
    yield sandbox
    if sandbox.processes():
        sandbox.peagle("sandbox", "stop")
    assert sandbox.processes() == []


@pytest.fixture
def live(account: Account) -> Iterator[str]:
    """An endpoint in service."""
    name = account.endpoint()
    assert account.wait_until_stable(name)["EndpointStatus"] == "InService"
    yield name
    account.delete(name)
