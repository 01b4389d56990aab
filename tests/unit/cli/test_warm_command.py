"""``peagle warm`` as it is typed: shows, asks, collects, stores, and removes whatever happens."""

import copy
import hashlib
import os
import signal
from typing import Any

import pytest

from peagle.warm import WarmReply
from tests.packed import KEY
from tests.support import Done
from tests.unit.aws.cloud import service_error
from tests.unit.cli.commands import Terminal, price_shown

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle:0.28.0"
PLAN = ("tiny", "--instance-type", "ml.g5.xlarge", "--image", IMAGE)
IN_S3 = ("--model-source", "s3://models/pair/target/", "--drafter", "s3://models/pair/drafter/")
WARM = ("warm", *PLAN, *IN_S3)
NAME = "peagle-tiny-drafter"
"""What a plan of tiny with a head of the user's own is called, or what is asked for."""


@pytest.fixture
def stocked(terminal: Terminal) -> Terminal:
    """Weights lie where the plan says."""
    for part in ("target", "drafter"):
        for name in ("config.json", "model.safetensors"):
            terminal.cloud.put("models", f"pair/{part}/{name}", b"{}")
    return terminal


def warmed(terminal: Terminal, *more: str) -> Done:
    return terminal.run(*WARM, "--name", NAME, "--yes", *more)


def is_removed(terminal: Terminal) -> bool:
    """Nothing that was deployed is left, and nothing is remembered."""
    cloud = terminal.cloud
    left = cloud.endpoints or cloud.configs or cloud.models
    return not left and terminal.run("list").err == "No deployments.\n"


def stored(terminal: Terminal) -> list[str]:
    return sorted(key for key in terminal.cloud.buckets["models"] if "/warm/" in key)


def test_the_artifact_is_stored_and_the_endpoint_is_gone(stocked: Terminal) -> None:
    done = warmed(stocked)
    assert done.code == 0, done.err
    assert stored(stocked) == [f"pair/warm/{KEY}.json", f"pair/warm/{KEY}.tar.gz"]
    assert f"s3://models/pair/warm/{KEY}.tar.gz" in done.out
    assert hashlib.sha256(stocked.cloud.packed.content).hexdigest() in done.out
    assert "Fetching | 4.2 of 4.2 MB" in done.err
    assert is_removed(stocked)


def test_weights_outside_s3_are_refused_with_the_command(terminal: Terminal) -> None:
    done = terminal.run("warm", *PLAN, "--yes")
    assert done.code == 3
    assert "peagle weights sync peagle/tiny+p-eagle s3://BUCKET/PREFIX" in done.error
    assert terminal.cloud.is_empty


def test_the_stock_image_is_refused_with_the_command(stocked: Terminal) -> None:
    done = stocked.run("warm", *PLAN[:3], *IN_S3, "--yes")
    assert done.code == 3
    assert "peagle image build peagle/tiny --drafter s3://" in done.error
    assert stocked.cloud.calls == []


def test_a_prefix_without_write_permission_costs_nothing(stocked: Terminal) -> None:
    stocked.rejects("create_multipart_upload")
    done = warmed(stocked)
    assert done.code == 4
    assert "s3:PutObject" in done.error
    assert "create_model" not in stocked.cloud.calls


ERRORS: tuple[tuple[str, Any, int, str], ...] = (
    ("packed.faults", [WarmReply(409, b'{"error": "nothing was compiled"}')], 3, "nothing was"),
    ("packed.faults", [WarmReply(400, b"?")], 3, "does not offer compile caches"),
    ("packed.faults", [None, *[WarmReply(200, b"short")] * 9], 4, "truncated"),
    ("packed.faults", [service_error("ThrottlingException", "Rate", "I")] * 9, 4, "Rate"),
    ("packed.faults", [None, KeyboardInterrupt()], 130, "interrupted"),
    ("packed.manifest", {"sha256": "0" * 64}, 4, "do not match"),
    ("packed.manifest", {"size": 10**18}, 2, "the artifact needs"),
    ("engine.acceptance", 1.0, 3, "acceptance length 1.00"),
    ("next_scripts", [[("Creating", None), ("Failed", "no ping")]], 4, "no ping"),
)
"""An attribute of the account and its value -> exit code, and words of the error."""


@pytest.mark.parametrize(("attribute", "value", "code", "words"), ERRORS)
def test_the_endpoint_is_removed_after_any_error(
    stocked: Terminal, attribute: str, value: Any, code: int, words: str
) -> None:
    part, _, name = attribute.rpartition(".")
    setattr(getattr(stocked.cloud, part) if part else stocked.cloud, name, copy.copy(value))
    done = warmed(stocked)
    assert done.code == code
    assert words in done.error
    assert stored(stocked) == []
    assert is_removed(stocked)


@pytest.mark.parametrize("operation", ["create_model", "create_endpoint", "upload_file"])
def test_ctrl_c_at_any_moment_leaves_nothing(stocked: Terminal, operation: str) -> None:
    stocked.interrupts(operation, after=True)
    done = warmed(stocked)
    stocked.recovers()
    assert done.code == 130
    assert is_removed(stocked)


def test_a_cancelled_pipeline_leaves_nothing(stocked: Terminal) -> None:
    """As Ctrl-C: what cancels a job sends SIGTERM."""

    def end(called: str) -> None:
        if called == "create_endpoint":
            os.kill(os.getpid(), signal.SIGTERM)

    stocked.cloud.after = end
    before = signal.getsignal(signal.SIGTERM)
    done = warmed(stocked)
    stocked.recovers()
    assert done.code == 130
    assert is_removed(stocked)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("interrupted", [False, True], ids=["refused", "interrupted again"])
def test_failed_removal_lists_the_remaining_resources(stocked: Terminal, interrupted: bool) -> None:
    def refused(called: str) -> None:
        if called == "delete_endpoint":
            raise KeyboardInterrupt if interrupted else service_error("AccessDenied", "no", called)

    stocked.cloud.before = refused
    stocked.cloud.packed.faults = [WarmReply(409, b'{"error": "nothing was compiled"}')]
    done = warmed(stocked)
    assert done.code == (130 if interrupted else 4)
    assert "nothing was compiled" in done.err
    assert f"Endpoint {NAME}-warm" in done.err
    assert price_shown() in done.err
    assert f"peagle destroy {NAME}-warm" in done.err
    stocked.recovers()
    assert stocked.run("destroy", f"{NAME}-warm", "--yes").code == 0
    assert is_removed(stocked)
