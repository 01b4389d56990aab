"""A sandbox for tests: its own home, the command line, and boto3 clients."""

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
from botocore.exceptions import ClientError

from peagle.aws.client import Aws, Keys, connect
from peagle.engine.process import EngineProcess, start_time
from peagle.engine_log import log_text
from peagle.sandbox import state
from peagle.sandbox.state import Daemon, EngineKind, read_daemon
from tests.support import run_in_process
from tests.unit.containers.weights import safetensors

ROLE = "arn:aws:iam::123456789012:role/peagle-sandbox-role"
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.28.0"
OUR_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny:1"
INSTANCE_TYPE = "ml.g6e.2xlarge"
BUCKET = "models"
WEIGHTS = {"config.json": b"{}", "model.safetensors": safetensors({"a.weight": [1]})}
_WRAPPER = """#!/bin/sh
case " $* " in
*" -c "*) echo 0.28.0 ;;
*) PYTHONPATH={packages} exec {python} "$@" ;;
esac
"""


def fake_engine(folder: Path) -> Path:
    """A Python whose vLLM 0.28.0 is ``fake_engine.py``."""
    package = folder / "packages" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("fake_engine.py"), package / "api_server.py")
    # The entrypoint recognizes a CPU engine by it.
    (folder / "packages" / "torch-2.0.0+cpu.dist-info").mkdir()
    python = folder / "python"
    packages = shlex.quote(str(folder / "packages"))
    python.write_text(_WRAPPER.format(python=shlex.quote(sys.executable), packages=packages))
    python.chmod(0o755)
    return python


def record_daemon(engine: EngineKind = "process") -> None:
    """Let this process be the running sandbox."""
    started = start_time(os.getpid())
    assert started is not None
    process = EngineProcess(os.getpid(), started, 1, "")
    state.write_daemon(state.Daemon(process, engine, state.AccessKey.create()))


@dataclass(frozen=True)
class Sandbox:
    """A home with a sandbox. ``engine`` is the Python that has vLLM, ``trainer`` the one that
    trains heads, by default one that cannot."""

    home: Path
    engine: Path
    trainer: Path = Path(sys.executable)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "PEAGLE_HOME": str(self.home),
            "PEAGLE_ENGINE_PYTHON": str(self.engine),
            "PEAGLE_TRAINER_PYTHON": str(self.trainer),
        }

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.settings}

    def peagle(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command in this process."""
        return run_in_process(*arguments, env=self.environment)

    def reset(self) -> None:
        """Remove all resources, engines and local records."""
        self.peagle("sandbox", "start")
        self.reset_moto()
        for path in self.home.iterdir():
            if path.name != "sandbox":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def reset_moto(self) -> None:
        """Remove all resources and engines."""
        self._control("POST", "/moto-api/reset")

    def advance_clock(self, seconds: float) -> list[str]:
        """Move the clock of the scheduler forward; the names of the schedules that have fired."""
        fired: list[str] = self._control("PUT", "/_peagle/clock", {"seconds": seconds})["fired"]
        return fired

    def _control(self, method: str, path: str, document: dict[str, Any] | None = None) -> Any:
        """The answer to a request of the sandbox's own."""
        headers = {"Authorization": self.address.key.authorization}
        body = json.dumps(document or {}).encode()
        url = f"{self.address.url}{path}"
        request = urllib.request.Request(url, body, headers, method=method)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    @property
    def address(self) -> Daemon:
        """The running sandbox's address and key."""
        with self.at_home():
            sandbox = read_daemon()
        assert sandbox is not None
        return sandbox

    def json(self, *arguments: str) -> Any:
        """The JSON document of a command that succeeds."""
        done = self.peagle(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Set this process's environment for the sandbox's home."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.settings.items():
                patch.setenv(name, value)
            yield

    def log_end(self) -> str:
        """The end of its log, which a failed test shows."""
        return (self.home / "sandbox" / "daemon.log").read_text()[-8000:]

    def processes(self) -> list[int]:
        """Every process of this home: the sandbox and its engines. What all homes share, such as
        the process that has imported vLLM and its forks, is of none."""
        mark = os.fsencode(self.home)
        processes = []
        for folder in Path("/proc").iterdir():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if not folder.name.isdigit() or mark not in environment:
                continue
            with suppress(psutil.Error):  # it has ended meanwhile
                if not _is_shared(psutil.Process(int(folder.name))):
                    processes.append(int(folder.name))
        return processes

    def commands(self) -> list[str]:
        """The command lines of its processes, which a failed test shows."""
        commands = []
        for pid in self.processes():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                commands.append(f"{pid} (of {process.ppid()}): {shlex.join(process.cmdline())}")
        return commands


def _client(service: str, region: str, url: str, keys: Keys, **more: Any) -> Any:
    return boto3.client(
        service,
        region_name=region,
        endpoint_url=url,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        **more,
    )


_shared_client = functools.cache(_client)
os.register_at_fork(after_in_child=_shared_client.cache_clear)  # connections are of one process


class Account:
    """SageMaker in one region of a sandbox."""

    def __init__(self, sandbox: Sandbox, region: str = "us-east-1") -> None:
        self.sandbox = sandbox
        self.region = region
        address = sandbox.address
        self.url = address.url
        self.keys = Keys(address.key.id, address.key.secret)
        self.sagemaker = self.client("sagemaker")
        self.runtime = self.client("sagemaker-runtime")
        self.logs = self.client("logs")
        self.s3 = self.client("s3")
        self._count = 0
        self._repositories: set[str] = set()

    def client(self, service: str, **more: Any) -> Any:
        """A client of boto3; without settings of its own all accounts share it, since to make one
        takes longer than most calls."""
        make = _client if more else _shared_client
        return make(service, self.region, self.url, self.keys, **more)

    def connect(self) -> Aws:
        """The toolkit's connection."""
        return connect(self.region, endpoint_url=self.url, keys=self.keys)

    def upload(self, prefix: str, files: dict[str, bytes]) -> None:
        self.s3.create_bucket(Bucket=BUCKET)
        for name, content in files.items():
            self.s3.put_object(Bucket=BUCKET, Key=f"{prefix}{name}", Body=content)

    def push(self, image: str) -> None:
        """Let the account's registry have an image, named by tag or digest."""
        ecr = self.client("ecr")
        named, _, digest = image.partition("@")
        repository, _, tag = named.partition("/")[2].partition(":")
        if repository not in self._repositories:
            with suppress(ecr.exceptions.RepositoryAlreadyExistsException):
                ecr.create_repository(repositoryName=repository)
            self._repositories.add(repository)
        with suppress(ecr.exceptions.ImageAlreadyExistsException):
            ecr.put_image(
                repositoryName=repository,
                imageManifest=json.dumps({"of": image}),
                imageManifestMediaType="application/vnd.oci.image.manifest.v1+json",
                imageTag=tag or "latest",
                **({"imageDigest": digest} if digest else {}),
            )

    def model(self, name: str, environment: dict[str, str] | None = None, **more: Any) -> str:
        """A model whose weights are in ``s3://models/tiny/`` (or ``ModelDataSource=None``)."""
        image = IMAGE.replace("us-east-1", self.region)
        container = {"Image": image, "Environment": environment or {}, **more}
        container.setdefault("ModelDataSource", {"S3DataSource": folder_on_s3("tiny/")})
        container = {name: value for name, value in container.items() if value is not None}
        self.sagemaker.create_model(
            ModelName=name, ExecutionRoleArn=ROLE, PrimaryContainer=container
        )
        return name

    def config(self, name: str, model: str, **more: Any) -> str:
        variant = {
            "VariantName": "AllTraffic",
            "ModelName": model,
            "InitialInstanceCount": 1,
            "InstanceType": INSTANCE_TYPE,
            **more,
        }
        self.sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
        return name

    def endpoint(self, environment: dict[str, str] | None = None, **more: Any) -> str:
        """Begin to create an endpoint, with a model and a configuration of the same name."""
        self._count += 1
        name = f"endpoint-{self._count}"
        self.model(name, environment, **more)
        self.config(name, name)
        self.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
        return name

    def describe(self, name: str) -> Any:
        return self.sagemaker.describe_endpoint(EndpointName=name)

    def wait_until_stable(self, name: str) -> Any:
        """The endpoint once it is in service or failed."""
        return until(
            lambda: self.describe(name),
            lambda endpoint: endpoint["EndpointStatus"] in ("InService", "Failed"),
        )

    def delete(self, name: str) -> None:
        """Delete an endpoint and wait until it is deleted."""
        self.sagemaker.delete_endpoint(EndpointName=name)
        self.wait_until_deleted(name)

    def wait_until_deleted(self, name: str) -> None:
        until(
            lambda: self.sagemaker.list_endpoints(NameContains=name)["Endpoints"],
            lambda endpoints: all(endpoint["EndpointName"] != name for endpoint in endpoints),
        )

    def log(self, name: str) -> list[str]:
        """All lines of an endpoint's log, as people read them."""
        pages = self.logs.get_paginator("filter_log_events").paginate(
            logGroupName=f"/aws/sagemaker/Endpoints/{name}"
        )
        return [log_text(event["message"]) for page in pages for event in page["events"]]

    def wait_for_line(self, name: str, text: str) -> list[str]:
        matches: list[str] = until(
            lambda: self.log(name), lambda lines: any(text in line for line in lines)
        )
        return matches

    def invoke(self, name: str, document: dict[str, Any], **more: Any) -> Any:
        """InvokeEndpoint's answer, decoded."""
        answer = self.runtime.invoke_endpoint(
            EndpointName=name, Body=json.dumps(document), ContentType="application/json", **more
        )
        return json.loads(answer["Body"].read())


_SHARED = ("import forked_server", "jsii-runtime")
"""In the command lines of what serves all tests of a process: vLLM's imports, and the CDK."""


def _is_shared(process: psutil.Process) -> bool:
    """Whether the process is one that all homes share, or a child of one.

    Its parent may be ending: a process that was killed is a zombie without a command line, and the
    parent of its children, until the last of its threads has ended.
    """
    with suppress(psutil.Error):
        line = " ".join(process.cmdline())
        if any(mark in line for mark in _SHARED):
            return True
    with suppress(psutil.Error):
        parent = process.parent()
        return parent is not None and _is_shared(parent)
    return False


@contextmanager
def started(sandbox: Sandbox) -> Iterator[Sandbox]:
    """Start the sandbox; afterwards stop it and check that nothing is left."""
    sandbox.json("sandbox", "start")
    yield sandbox
    sandbox.peagle("sandbox", "stop")
    until(sandbox.commands, lambda left: left == [], seconds=20)


def refusal(call: Callable[..., object], **parameters: Any) -> tuple[str, str]:
    """The code and the message with which a call is refused."""
    with pytest.raises(ClientError) as refused:
        call(**parameters)
    error = refused.value.response["Error"]
    return str(error["Code"]), str(error["Message"])


def folder_on_s3(prefix: str) -> dict[str, str]:
    return {"S3Uri": f"s3://{BUCKET}/{prefix}", "S3DataType": "S3Prefix", "CompressionType": "None"}


def until(read: Callable[[], Any], good: Callable[[Any], bool], seconds: float = 60) -> Any:
    """The result of ``read`` once it is ``good``; fails after ``seconds``."""
    end = time.monotonic() + seconds
    while not good(answer := read()):
        assert time.monotonic() < end, f"after {seconds} s still: {answer}"
        time.sleep(0.1)  # each look takes processor time from what it waits for
    return answer
