"""Only the CPU build of vLLM is started with the toolkit's plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from peagle_serve.plugins import FOLDER, NAMES
from tests.unit.containers.recording import SERVE, Container, container_in

OURS = ",".join(NAMES)
LAYERS = """
def check_cpu_sgl_kernel(n, k, dtype):
    return True
"""
ASKED = """
import json
from importlib.metadata import entry_points
from vllm.model_executor.layers import utils
for plugin in entry_points(group="vllm.general_plugins"):
    plugin.load()()
chosen = {name: utils.check_cpu_sgl_kernel(1, 1, getattr(__import__("torch"), name))
          for name in ("int8", "bfloat16", "float16")}
print(json.dumps(chosen))
"""
"""Loads the plugins as vLLM does, and prints its choices of the kernel."""


@pytest.fixture
def container(tmp_path: Path) -> Container:
    """A container whose torch is built for the CPU."""
    (tmp_path / "torch-2.13.0+cpu.dist-info").mkdir()
    return container_in(tmp_path)


def started(container: Container, **variables: str) -> dict[str, str]:
    """The environment with which vLLM is started."""
    container.argv({"SM_VLLM_MODEL": "a/b", **variables})
    environment: dict[str, str] = json.loads(container.record.read_text())["environment"]
    return environment


@pytest.mark.thorough
def test_a_cpu_build_finds_the_plugin_after_all_other_paths(container: Container) -> None:
    path = started(container)["PYTHONPATH"].split(os.pathsep)

    assert path == [str(SERVE.parent), str(container.folder), str(FOLDER)]


@pytest.mark.thorough
def test_other_builds_do_not_get_the_plugin(container: Container) -> None:
    (container.folder / "torch-2.13.0+cpu.dist-info").rename(
        container.folder / "torch-2.13.0+cu130.dist-info"
    )

    assert str(FOLDER) not in started(container)["PYTHONPATH"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("given", "allowed"), [("theirs", f"theirs,{OURS}"), ("", OURS), ("a,b", f"a,b,{OURS}")]
)
def test_the_plugins_are_added_to_a_list_of_allowed_plugins(
    container: Container, given: str, allowed: str
) -> None:
    assert started(container, VLLM_PLUGINS=given)["VLLM_PLUGINS"] == allowed


@pytest.mark.thorough
def test_without_such_a_list_all_plugins_stay_allowed(container: Container) -> None:
    assert "VLLM_PLUGINS" not in started(container)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layers", "chosen"),
    [
        (LAYERS, {"int8": True, "bfloat16": False, "float16": False}),
        ("def another(): pass\ncheck_cpu_sgl_kernel = None", None),
    ],
)
def test_only_8_bit_integers_may_use_the_matrix_kernel(
    tmp_path: Path, layers: str, chosen: dict[str, bool] | None
) -> None:
    package = tmp_path / "vllm" / "model_executor" / "layers"
    package.mkdir(parents=True)
    (package / "utils.py").write_text(layers)
    (tmp_path / "torch.py").write_text("int8, bfloat16, float16 = object(), object(), object()")
    path = os.pathsep.join(map(str, (SERVE.parent, tmp_path, FOLDER)))
    script = ASKED if chosen else ASKED.partition("chosen =")[0]

    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout) if chosen else None) == chosen
