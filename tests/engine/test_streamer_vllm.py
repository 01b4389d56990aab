"""Real vLLM streams weights from S3, as `--weights-by stream` plans it.

The tiny pair from the S3 of the sandbox gives the same answers as from a mount.
"""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peagle import proof
from peagle.catalog import load_catalog
from peagle.data import data_folder
from peagle.engine import local
from peagle.engine.logs import read_crash
from peagle.engine.machine import Engine, find_engine, this_machine
from peagle.engine.process import (
    EngineProcess,
    free_port,
    is_alive,
    is_healthy,
    start_engine,
    stop_engine,
)
from peagle.engine.runner import adapt_to_cpu
from peagle.findings import errors
from peagle.planning import Options, Plan, make_plan
from peagle.protocol import parse_piece, request_body
from tests.conftest import DEFAULT_VLLM
from tests.engine.conftest import TINY
from tests.sandbox.sandboxes import Account, Sandbox, until

pytestmark = [pytest.mark.engine, pytest.mark.sandbox]
PLACE = "s3://streamed/tiny/"
LOCK = Path(__file__).with_name("streamer.txt")
OF_OURS = ("boto3", "botocore", "s3transfer", "dateutil", "six", "jmespath")
"""Packages that the streamer needs and the environment of the tests has."""
HEAD = data_folder("model_catalog") / "peagle" / "tiny" / "p-eagle"
START_SECONDS = 240


@pytest.fixture(scope="module")
def packages(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the streamer; the environment of the engine does not change."""
    folder = tmp_path_factory.mktemp("streamer")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
               str(folder), "--only-binary=:all:", "--require-hashes", "-r", str(LOCK)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        pytest.skip(f"runai-model-streamer cannot be had: {done.stderr.strip()[-300:]}")
    for name in OF_OURS:
        file = Path(str(importlib.import_module(name).__file__))
        source = file.parent if file.name == "__init__.py" else file
        (folder / source.name).symlink_to(source)
    return folder


@pytest.fixture(scope="module")
def stored(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The tiny pair below ``PLACE``; returns the variables with which a client finds that S3, and
    an empty cache of the Hub."""
    sandbox.json("weights", "sync", "tiny", PLACE, "--sandbox", "--yes")
    environment: dict[str, str] = sandbox.json("sandbox", "env")
    return environment | {"HF_HUB_CACHE": str(tmp_path_factory.mktemp("hub"))}


def planned(drafter: str) -> Plan:
    options = Options(
        pair="tiny", weights_by="stream", model_source=f"{PLACE}target/", drafter=drafter
    )
    plan = make_plan(options, load_catalog())
    assert errors(plan.findings) == []
    assert plan.environment["SM_VLLM_MODEL"] == f"{PLACE}target/"
    return plan


@contextmanager
def running(
    plan: Plan, packages: Path, stored: dict[str, str], folder: Path, **more: str
) -> Iterator[EngineProcess]:
    """The CPU engine with the environment of the plan, the streamer and the S3 of the sandbox."""
    environment, _ = adapt_to_cpu(plan.environment, this_machine())
    environment |= {
        **stored,
        "PYTHONPATH": str(packages),
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",  # loopback has no host names of buckets
        "VLLM_ASSETS_CACHE": str(folder / "assets"),
        **more,
    }
    process = start_engine(
        find_engine(DEFAULT_VLLM), environment, folder / "ml", free_port(), folder / "log"
    )
    try:
        yield process
    finally:
        stop_engine(process)


def wait_until_healthy(process: EngineProcess) -> None:
    def ended_or_healthy() -> bool:
        assert is_alive(process), read_crash(Path(process.log))
        return is_healthy(process.port)

    until(ended_or_healthy, bool, START_SECONDS)


def check_proof(plan: Plan, port: int) -> None:
    """The proof of the plan, as in `peagle deploy`: drafts are accepted."""
    assert plan.speculation is not None
    proof.require_passed(
        proof.prove(
            lambda body: local.ask(port, body),
            lambda: local.counters(port),
            prompts=plan.proof.prompts,
            chat=plan.proof.chat,
            max_tokens=plan.proof.max_tokens,
            floor=plan.speculation.acceptance_floor,
        )
    )


def test_target_and_drafter_are_streamed_and_answer_as_from_a_mount(
    sandbox: Sandbox, printed: str, packages: Path, stored: dict[str, str], tmp_path: Path
) -> None:
    plan = planned(f"{PLACE}drafter/")
    asked = [request_body(prompt, chat=True, max_tokens=60) for prompt in plan.proof.prompts]
    mounted = [parse_piece(Account(sandbox).invoke(TINY, body)).text for body in asked]
    with running(plan, packages, stored, tmp_path) as engine:
        wait_until_healthy(engine)
        check_proof(plan, engine.port)
        answers = [parse_piece(local.ask(engine.port, body)).text for body in asked]
    assert answers == mounted
    assert not (tmp_path / "ml").exists(), "nothing was mounted"
    copied = {file.name for file in (tmp_path / "assets").rglob("*") if file.is_file()}
    assert "config.json" in copied
    assert not [name for name in copied if name.endswith(".safetensors")]


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_a_drafter_that_is_not_in_s3_is_loaded_beside_a_streamed_target(
    place: str, packages: Path, stored: dict[str, str], tmp_path: Path
) -> None:
    """A folder of the user is mounted; a head on the Hub is downloaded (here: cached)."""
    plan = planned(str(HEAD) if place == "folder" else "me/head")
    if place == "folder":
        shutil.copytree(HEAD, tmp_path / "ml" / "model" / "drafter")
    else:
        cache = Path(stored["HF_HUB_CACHE"]) / "models--me--head"
        shutil.copytree(HEAD, cache / "snapshots" / "0123456")
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("0123456")
    with running(plan, packages, stored, tmp_path) as engine:
        wait_until_healthy(engine)
        check_proof(plan, engine.port)


@pytest.mark.parametrize(
    ("bucket", "cause"), [("no-such-bucket", "NoSuchBucket"), ("streamed", "Invalid repository")]
)
def test_an_s3_uri_without_a_model_fails_with_the_command_that_lists_it(
    bucket: str, cause: str, packages: Path, stored: dict[str, str], tmp_path: Path
) -> None:
    plan = planned(f"{PLACE}drafter/")
    elsewhere = {"SM_VLLM_MODEL": f"s3://{bucket}/nothing/"}
    with running(plan, packages, stored, tmp_path, **elsewhere) as engine:
        until(lambda: is_alive(engine), lambda alive: not alive, START_SECONDS)
    last = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert cause in last["message"]
    assert last["command"][:3] == ["peagle", "weights", "list"]
