"""The toolkit's own files, which an editor, a full disk or another version may have changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any
from unittest import mock

from peagle.aws import ecr
from peagle.aws.prices import _cached_quota
from peagle.deploy import records as deployments
from peagle.deploy.state import Deployment, Resource
from peagle.engine import install
from peagle.engine import local as local_engines
from peagle.engine import state as engines
from peagle.engine.machine import MARKER
from peagle.engine.process import EngineProcess
from peagle.errors import PeagleError
from peagle.images.build import _configure
from peagle.sandbox import state as sandbox
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.aws import Answers
from tests.fuzz.parsers.examples import ENVIRONMENT
from tests.fuzz.parsers.files import folder, written
from tests.unit.aws.plans import a_plan, a_revision

PROCESS = asdict(EngineProcess(2**22 - 1, 5, 8080, "/tmp/engine.log"))
ENGINE = asdict(
    engines.LocalEngine(
        "mine", "tiny", "tiny", "0.28.0", ENVIRONMENT, ("a note",),
        EngineProcess(2**22 - 1, 5, 8080, "/tmp/engine.log"), 1.5,
    )
)  # fmt: skip
QUOTA = {"name": "q", "value": 2.0, "code": "L-1"}
PUSHED = {"x.dkr.ecr.us-east-1.amazonaws.com/a:1": {"pair": "tiny", "baked": True}}
MADE = [{"kind": "Repository", "name": "peagle/tiny"}, {"kind": "Object", "name": "b/k"}]


def cached(value: Any) -> dict[str, Any]:
    return {"format": 1, "fetched": time.time() - 10, "value": value}


@cache
def records() -> tuple[dict[str, Any], ...]:
    """A record."""
    revision = a_revision(a_plan())
    now = Deployment(
        name="mine", scope="123456789012", account="123456789012", region="us-east-1",
        serving=revision, pending=revision,
        resources=(Resource(type="Model", name="m", revision="0a1b2c3d", keys=("k",)),),
    ).model_dump(mode="json")  # fmt: skip
    return (now,)


def at_home(path: str, *reads: Callable[[], object]) -> Callable[[bytes], None]:
    """Each of ``reads`` with a home folder that has that file."""

    def run(content: bytes) -> None:
        written(f"home/{path}", content)
        with mock.patch.dict("os.environ", {"PEAGLE_HOME": str(folder() / "home")}):
            for read in reads:
                try:
                    read()
                except PeagleError:
                    continue

    return run


def _aws() -> Answers:
    return Answers()


def _docker_config(content: bytes) -> None:
    own = written("docker/config.json", content).parent
    made = folder() / "configured"
    for left in sorted(made.rglob("*"), reverse=True):
        left.rmdir() if left.is_dir() and not left.is_symlink() else left.unlink()
    made.mkdir(exist_ok=True)
    with mock.patch.dict("os.environ", {"DOCKER_CONFIG": str(own)}):
        _configure(made, ["host"])


def _lock(content: bytes) -> None:
    place = written("engine/" + MARKER, content).parent
    install.lock_of(place, "0.28.0")


def _drain(content: bytes) -> None:
    engine = engines.read_local_engine("mine")
    if engine:
        local_engines.drain_seconds(engine)


def _bytes(*values: Any) -> Sequence[bytes]:
    return [json.dumps(value).encode() for value in values]


SCOPE = "123456789012/us-east-1"
PARSERS = (
    Parser(
        "deployment-record",
        at_home(
            f"deployments/{SCOPE}/mine.json",
            lambda: deployments.load_record("123456789012", "us-east-1", "mine"),
            lambda: deployments.all_records(),
            lambda: deployments.find_record("mine"),
        ),
        _bytes(*records()),
    ),
    Parser(
        "local-engine",
        at_home(
            "local/mine/state.json",
            lambda: engines.read_local_engine("mine"),
            engines.local_engines,
            engines.unreadable_records,
            lambda: engines.ready_engine("mine"),
            lambda: _drain(b""),
        ),
        _bytes(ENGINE),
    ),
    Parser(
        "warm-pins",
        at_home(f"warm/{'a' * 32}.json", engines.warm_pins),
        _bytes({"sha256": "a" * 64}),
    ),
    Parser("sandbox-daemon", at_home("sandbox/daemon.json", sandbox.read_daemon), _bytes(PROCESS)),
    Parser(
        "sandbox-engine",
        at_home("sandbox/engines/4194303.json", sandbox.living_engines),
        _bytes(PROCESS),
    ),
    Parser(
        "sandbox-kind", at_home("sandbox/engine", sandbox.read_engine_kind), [b"docker", b"process"]
    ),
    Parser(
        "image-records",
        at_home(f"images/{SCOPE}.json", lambda: ecr.image_resources(_aws())),
        _bytes(MADE),
    ),
    Parser(
        "pushed-images",
        at_home(f"images/{SCOPE}.pushed.json", lambda: ecr._pushed_images(_aws())),
        _bytes(PUSHED),
    ),
    Parser(
        "cached-quota",
        at_home(
            f"online/{SCOPE}/quota-ml.g6.xlarge.json",
            lambda: _cached_quota(_aws(), "ml.g6.xlarge", 1),
        ),
        _bytes(cached(QUOTA)),
    ),
    Parser("docker-config", _docker_config, _bytes({"currentContext": "default"})),
    Parser("engine-marker", _lock, _bytes({"vllm": "0.28.0", "lock": "a" * 64}), PeagleError),
)
