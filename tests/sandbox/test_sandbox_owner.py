"""The sandbox belongs to its user: another user of this machine can neither call it nor read it,
and hostile requests of a program that has its key are refused."""

import http.client
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.sandbox.sandboxes import IMAGE, ROLE, WEIGHTS, Account, Sandbox

pytestmark = pytest.mark.sandbox
NOBODY = 65534
API_KEY = "api-key-of-the-engine"
SECRETS = {"HF_TOKEN": "hf_of_the_caller", "MY_PASSWORD": "password-of-the-caller"}
ONCE = Config(retries={"total_max_attempts": 1})


@pytest.fixture(scope="module")
def owned(engine: Path) -> Iterator[Sandbox]:
    """A sandbox in a folder that every user could enter, started with secrets around."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    sandbox = Sandbox(folder / "home", engine)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        sandbox.json("sandbox", "start")
    yield sandbox
    sandbox.peagle("sandbox", "stop")
    shutil.rmtree(folder)
    assert sandbox.processes() == []


@pytest.fixture(scope="module")
def serving(owned: Sandbox) -> Account:
    account = Account(owned)
    account.upload("tiny/", WEIGHTS)
    name = account.endpoint({"SM_VLLM_API_KEY": API_KEY})
    assert account.wait_until_stable(name)["EndpointStatus"] == "InService"
    return account


def as_another_user(attempt: Callable[[], object]) -> str:
    """What ``attempt`` returns or raises in a child process of another user, as text; in one of
    this user where only root could change it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            outcome = str(attempt())
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        outcome = stream.read()
    os.waitpid(child, 0)
    return outcome


def test_another_user_cannot_create_a_model(serving: Account) -> None:
    container = {"Image": IMAGE, "Environment": {"LD_PRELOAD": "/tmp/of-another-user.so"}}

    def attempt() -> object:
        sagemaker = boto3.client(
            "sagemaker", region_name="us-east-1", endpoint_url=serving.url, config=ONCE,
            aws_access_key_id="testing", aws_secret_access_key="testing",
        )  # fmt: skip
        return sagemaker.create_model(
            ModelName="m", ExecutionRoleArn=ROLE, PrimaryContainer=container
        )

    assert "the sandbox accepts only its own access key" in as_another_user(attempt)
    models = serving.sagemaker.list_models()["Models"]
    assert [model["ModelName"] for model in models] == ["endpoint-1"]


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/_peagle/status", 403),
    ("POST", "/_peagle/faults", 403),
    ("GET", "/moto-api/", 403),
    ("POST", "/moto-api/reset", 403),
    ("GET", "/models/tiny/config.json", 403),
    ("POST", "/endpoints/endpoint-1/invocations", 403),
    ("POST", "/endpoints/endpoint-1/openai/v1/chat/completions", 401),
    ("GET", "/endpoints/endpoint-1/openai/v1/models", 401),
])  # fmt: skip
def test_another_user_reaches_nothing(
    serving: Account, method: str, path: str, status: int
) -> None:
    def attempt() -> int:
        connection = http.client.HTTPConnection(urlsplit(serving.url).netloc, timeout=30)
        connection.request(method, path, b"{}", {"Authorization": "Peagle guessed"})
        return connection.getresponse().status

    assert as_another_user(attempt) == str(status)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_reads_nothing(owned: Sandbox, serving: Account) -> None:
    state = owned.home / "sandbox"
    for path in (owned.home, state, state / "daemon.json", state / "daemon.log"):
        read: Callable[[Path], object] = os.listdir if path.is_dir() else Path.read_bytes
        assert as_another_user(partial(read, path)).startswith("PermissionError")
    pid = owned.address.pid
    environ = Path(f"/proc/{pid}/environ")
    assert as_another_user(environ.read_bytes).startswith("PermissionError")
    assert as_another_user(lambda: os.kill(pid, 9)).startswith("PermissionError")


def test_everything_in_the_home_is_private(owned: Sandbox, serving: Account) -> None:
    paths = [path for path in (owned.home, *owned.home.rglob("*")) if not path.is_symlink()]
    assert any(path.suffix == ".safetensors" for path in paths), "weights are there"
    assert [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_the_key_and_the_callers_secrets_are_in_no_process(
    owned: Sandbox, serving: Account
) -> None:
    """Neither in an argv, which every user can read, nor in an environment."""
    key = owned.address.key
    running = [Path("/proc") / str(pid) for pid in owned.processes()]
    assert len(running) == 3, "the sandbox, the entrypoint and its engine"
    for process in running:
        text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        for secret in (key.id, key.secret, *SECRETS.values()):
            assert secret.encode() not in text
        assert API_KEY.encode() not in (process / "cmdline").read_bytes()
    shown = (owned.home / "sandbox" / "daemon.log").read_text() + repr(owned.address)
    assert key.id not in shown
    assert key.secret not in shown


def test_a_key_ends_with_its_sandbox(home: Sandbox) -> None:
    home.json("sandbox", "start")
    old = Account(home)
    home.json("sandbox", "stop")
    home.json("sandbox", "start", "--port", old.url.rpartition(":")[2])
    with pytest.raises(ClientError, match="peagle sandbox env"):
        old.sagemaker.list_endpoints()
    assert Account(home).sagemaker.list_endpoints()["Endpoints"] == []


@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "LD_PRELOAD", "PATH", "VLLM_LOGGING_CONFIG_PATH", "SM_VLLM_MIDDLEWARE"]
)
def test_a_variable_that_chooses_code_starts_no_process(
    account: Account, tmp_path: Path, name: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    endpoint = account.endpoint({name: str(tmp_path)})
    failed = account.wait_until_stable(endpoint)
    assert failed["EndpointStatus"] == "Failed"
    assert f"{name}: this chooses the code" in failed["FailureReason"]
    assert not (tmp_path / "ran").exists()
    account.delete(endpoint)
