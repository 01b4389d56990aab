"""Our plugins: only the CPU build of vLLM gets them, and what they change of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peagle_serve.command import PLUGINS_FOLDER
from tests.unit.containers.recording import SERVE, Container, container_in

pytestmark = pytest.mark.thorough
LAYERS = """
def check_cpu_sgl_kernel(n, k, dtype):
    return True
"""
KERNELS_ASKED = """
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
REGISTRY = """
def _run_in_subprocess(look):
    return "in another process"
"""
CORE = """
import multiprocessing
def get_mp_context():
    return multiprocessing.get_context("spawn")
"""
CORE_ASKED = """
import json, os, socket, sys
from peagle_serve.plugins import install_quick_start
install_quick_start()
from vllm.model_executor.models import registry
from vllm.v1.engine import utils

def core(queue, listener, connected, inner):
    def is_open(descriptor):
        try:
            return bool(os.fstat(descriptor))
        except OSError:
            return False
    queue.put({
        "imported": "only_here" in sys.modules,
        "open": [is_open(each) for each in (listener, connected, inner)],
    })

sys.modules["only_here"] = sys
listener = socket.create_server(("127.0.0.1", 0))
connected = socket.create_connection(listener.getsockname())
inner, _other = socket.socketpair()
context = utils.get_mp_context()
queue = context.Queue()
process = context.Process(
    target=core, args=(queue, *(each.fileno() for each in (listener, connected, inner)))
)
process.start()
answer = queue.get()
process.join()
listener.getsockname()
print(json.dumps({**answer, "looked": registry._run_in_subprocess(lambda: "here")}))
"""
"""What a core that begins as vLLM begins it has of this process."""


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


def test_a_cpu_build_finds_the_plugin_after_all_other_paths(container: Container) -> None:
    path = started(container)["PYTHONPATH"].split(os.pathsep)
    assert path == [str(SERVE.parent), str(container.folder), str(PLUGINS_FOLDER)]


def test_other_builds_do_not_get_the_plugin(container: Container) -> None:
    (container.folder / "torch-2.13.0+cpu.dist-info").rename(
        container.folder / "torch-2.13.0+cu130.dist-info"
    )
    assert str(PLUGINS_FOLDER) not in started(container)["PYTHONPATH"]


@pytest.mark.parametrize(("layers", "chosen"), [
    (LAYERS, {"int8": True, "bfloat16": False, "float16": False}),
    ("def another(): pass\ncheck_cpu_sgl_kernel = None", None),
])  # fmt: skip
def test_only_8_bit_integers_may_use_the_matrix_kernel(
    tmp_path: Path, layers: str, chosen: dict[str, bool] | None
) -> None:
    package = tmp_path / "vllm" / "model_executor" / "layers"
    package.mkdir(parents=True)
    (package / "utils.py").write_text(layers)
    (tmp_path / "torch.py").write_text("int8, bfloat16, float16 = object(), object(), object()")
    path = os.pathsep.join(map(str, (SERVE.parent, tmp_path, PLUGINS_FOLDER)))
    script = KERNELS_ASKED if chosen else KERNELS_ASKED.partition("chosen =")[0]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout) if chosen else None) == chosen


def asked(folder: Path, script: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": os.pathsep.join((str(SERVE.parent), str(folder)))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def vllm_with(folder: Path, modules: dict[str, str]) -> Path:
    for name, text in modules.items():
        file = folder / "vllm" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="the CPU engine needs Linux")
def test_the_core_has_all_imports_and_not_the_servers_port(tmp_path: Path) -> None:
    modules = {"model_executor/models/registry": REGISTRY, "v1/engine/utils": CORE}
    answers = asked(vllm_with(tmp_path, modules), CORE_ASKED)
    assert answers == {"imported": True, "open": [False, True, True], "looked": "here"}
