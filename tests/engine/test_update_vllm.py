"""Deployments that fail, change and end, with real vLLM and the tiny pair. In its group it
runs after all other modules, since the shared endpoint goes with it."""

import json
import shutil
from pathlib import Path

import pytest

from peagle.data import data_folder
from tests.engine.conftest import TINY
from tests.sandbox.sandboxes import OUR_IMAGE, Account, Sandbox
from tests.support import Peagle

pytestmark = [pytest.mark.engine, pytest.mark.sandbox]
QUESTION = "What does os.path.join do?"
WHERE = ("--sandbox",)


@pytest.fixture(scope="module")
def broken_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny head with an activation that vLLM does not support for it and no rule checks."""
    folder = tmp_path_factory.mktemp("head") / "p-eagle"
    shutil.copytree(data_folder("model_catalog") / "peagle" / "tiny" / "p-eagle", folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_act": "gelu"}))
    return folder


def test_a_broken_head_fails_with_its_reason_and_is_removed_completely(
    peagle: Peagle, sandbox: Sandbox, broken_head: Path
) -> None:
    done = peagle(
        "deploy", "tiny", "--drafter", str(broken_head), "--name", "broken", *WHERE, "--yes"
    )
    assert done.returncode == 4
    error = done.stderr.splitlines()[-1]
    assert "endpoint broken will never serve" in error
    assert "Unsupported activation: gelu" in error
    assert sandbox.peagle("status", "broken", *WHERE).returncode == 2
    assert "broken" not in [row["name"] for row in sandbox.json("list", *WHERE)["deployments"]]


def test_a_failed_update_is_reported_at_once_and_rolled_back(
    printed: str, peagle: Peagle, sandbox: Sandbox, broken_head: Path
) -> None:
    before = sandbox.json("status", TINY, *WHERE)
    done = peagle("deploy", "tiny", "--drafter", str(broken_head), "--name", TINY, *WHERE, "--yes")
    assert done.returncode == 4
    assert "Unsupported activation: gelu" in done.stderr
    assert "the earlier configuration keeps serving" in done.stderr
    Account(sandbox).wait_until_stable(TINY)
    after = sandbox.json("status", TINY, *WHERE)
    assert after["state"] == "InService"
    assert after["endpoint_config"] == before["endpoint_config"]
    assert sandbox.json("invoke", TINY, QUESTION, "--max-tokens", "8", *WHERE)["output_tokens"] == 8


def test_another_k_and_image_are_an_update_with_a_new_proof(printed: str, sandbox: Sandbox) -> None:
    Account(sandbox).push(OUR_IMAGE)
    changes = ("--k", "3", "--image", OUR_IMAGE)
    document = sandbox.json("deploy", "tiny", *changes, "--yes", *WHERE)
    assert document["state"] == "InService"
    assert document["k"] == len(document["acceptance_per_position"]) == 3
    assert document["acceptance_length"] > 1.5
    assert document["proof"]["source"] == "counters"
    answer = sandbox.json("invoke", TINY, QUESTION, "--max-tokens", "48", *WHERE)
    assert answer["acceptance_length"] > 1.5, "of this answer"
    kinds = [resource["type"] for resource in document["resources"]]
    kept = "the new revision and the previous one"
    assert kinds.count("Model") == kinds.count("EndpointConfig") == 2, kept


def test_destroy_leaves_no_process_and_no_record(
    printed: str, sandbox: Sandbox, peagle: Peagle
) -> None:
    sandbox.json("destroy", TINY, "--yes", *WHERE)
    assert json.loads(peagle("sandbox", "status", "--json").stdout)["endpoints"] == []
    assert sandbox.json("list", *WHERE)["deployments"] == []
