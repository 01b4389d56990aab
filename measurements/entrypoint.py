"""The time that the container's entrypoint adds before vLLM starts.

Goal: at most 150 ms. Measured from the start of ``peagle_serve`` to the first line of the
server, minus the same without the entrypoint, in alternation. A fake replaces vLLM's server; the
sources that the entrypoint reads are vLLM's own.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from measurements.timing import ROUNDS
from peagle.data import entrypoint_folder

GOAL_MS = 150.0
VLLM = "0.28.0"
SOURCES = ("engine/arg_utils.py", "entrypoints/openai/cli_args.py")
SERVER = "vllm.entrypoints.openai.api_server"
NOTE = "import os, time\nopen(os.environ['NOTE'], 'w').write(str(time.monotonic()))\n"


def main() -> bool:
    """Measure and print the milliseconds; whether the goal is met."""
    from peagle.data import data_folder
    from peagle.engine.machine import find_engine

    python = str(find_engine(VLLM).python)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        fake_vllm(place, python)
        tiny = data_folder("model_catalog") / "peagle" / "tiny"
        environment = environment_for(place, tiny, tiny / "p-eagle")
        served = [python, str(entrypoint_folder()), "serve"]
        commands = ([python, "-m", SERVER], served)
        for command in commands:
            _seconds(command, environment)
        taken = [[_seconds(command, environment) for command in commands] for _ in range(ROUNDS)]
    added = [(through - alone) * 1000 for alone, through in taken]
    middle = statistics.median(added)
    print(
        f"entrypoint before vLLM   {middle:.0f} ms (worst {max(added):.0f})   goal 150 ms   "
        f"{middle / GOAL_MS:.2f}"
    )
    return middle <= GOAL_MS


def fake_vllm(place: Path, python: str) -> None:
    """Write a package ``vllm`` with vLLM's own sources, whose server records the time and exits."""
    find = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    done = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True)
    real = Path(done.stdout.strip())
    for name in SOURCES:
        (place / "vllm" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(real / name, place / "vllm" / name)
    (place / "vllm" / "__init__.py").touch()
    (place / "vllm" / "entrypoints" / "openai" / "api_server.py").write_text(NOTE)


def environment_for(place: Path, tiny: Path, head: Path) -> dict[str, str]:
    """The environment of a container with the tiny target, ``head`` with parallel drafting, and the
    engine in ``place``."""
    from peagle.engine.process import free_port

    config = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 5}
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(place),
        "NOTE": str(place / "note"),
        "SM_VLLM_MODEL": str(tiny / "target"),
        "SM_VLLM_MAX_MODEL_LEN": "2048",
        "SM_VLLM_MAX_NUM_SEQS": "8",
        "SM_VLLM_HOST": "127.0.0.1",
        "SM_VLLM_SPECULATIVE_CONFIG": json.dumps({**config, "parallel_drafting": True}),
        "SAGEMAKER_BIND_TO_PORT": str(free_port()),
    }


def _seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """From the start of the command to the note."""
    note = Path(environment["NOTE"])
    note.unlink(missing_ok=True)
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert note.is_file(), done.stderr.decode()
    return float(note.read_text()) - begin


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
