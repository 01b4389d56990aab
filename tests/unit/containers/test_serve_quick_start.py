"""With the plugin vLLM's CPU build looks at models where it is, and its core begins as a fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.containers.recording import SERVE

REGISTRY = """
def _run_in_subprocess(look):
    return "in another process"
"""
CORE = """
import multiprocessing
def get_mp_context():
    return multiprocessing.get_context("spawn")
"""
ASKED = """
import json, os, socket, sys
from peagle_serve.quick_start import install
install()
from vllm.model_executor.models import registry
from vllm.v1.engine import utils

def core(queue, listener, connected, own):
    def is_open(descriptor):
        try:
            return bool(os.fstat(descriptor))
        except OSError:
            return False
    queue.put({
        "imported": "only_here" in sys.modules,
        "open": [is_open(one) for one in (listener, connected, own)],
    })

sys.modules["only_here"] = sys
listener = socket.create_server(("127.0.0.1", 0))
connected = socket.create_connection(listener.getsockname())
own, _other = socket.socketpair()
context = utils.get_mp_context()
queue = context.Queue()
process = context.Process(
    target=core, args=(queue, *(one.fileno() for one in (listener, connected, own)))
)
process.start()
found = queue.get()
process.join()
listener.getsockname()
print(json.dumps({**found, "looked": registry._run_in_subprocess(lambda: "here")}))
"""
"""What a core that begins as vLLM begins it has of this process."""


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


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the CPU engine needs Linux")
def test_the_core_has_all_imports_and_not_the_servers_port(tmp_path: Path) -> None:
    modules = {"model_executor/models/registry": REGISTRY, "v1/engine/utils": CORE}

    found = asked(vllm_with(tmp_path, modules), ASKED)

    assert found == {"imported": True, "open": [False, True, True], "looked": "here"}


@pytest.mark.parametrize("modules", [{}, {"model_executor/models/registry": "other = 1"}])
def test_a_vllm_without_these_functions_stays_as_it_is(
    tmp_path: Path, modules: dict[str, str]
) -> None:
    script = "from peagle_serve.quick_start import install; install(); print(0)"

    assert asked(vllm_with(tmp_path, modules), script) == 0
