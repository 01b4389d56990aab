"""The trainer's programs, as far as a training on one CPU does not run them."""

import os
import subprocess
from pathlib import Path

import pytest

from peagle.engine.hidden_states import TRAINER

pytestmark = pytest.mark.engine


def test_each_of_several_clients_passes_its_rank_to_speculators(
    trainer: Path, tmp_path: Path
) -> None:
    """Without a server: speculators refuses one that is out of range."""
    command = [str(trainer), str(TRAINER), "generate-offline-data", "--model", "target"]
    command += ["--preprocessed-data", str(tmp_path), "--endpoint", "http://127.0.0.1:1/v1"]
    done = subprocess.run(
        command, capture_output=True, text=True,
        env={**os.environ, "RANK": "4", "WORLD_SIZE": "4"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "--rank must be in range" in done.stderr
