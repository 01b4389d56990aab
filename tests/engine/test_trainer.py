"""The trainer's programs, as far as a training on one CPU does not run them."""

import os
import subprocess
from pathlib import Path

import pytest

from peagle.engine.hidden_states import EVENTS_VARIABLE, TRAINER

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


INTERRUPT = """
from collections import namedtuple
import peagle_trainer
from speculators.train.trainer import Trainer
def save(self, epoch, local_step=0):
    print(epoch, local_step, self.config.checkpoint_freq)
Trainer.maybe_save_checkpoint = save
peagle_trainer.report_training()
for first in (100, 90, None):
    trainer = object.__new__(Trainer)
    trainer.config = namedtuple("Config", "checkpoint_freq")(7)
    trainer.global_step, trainer.peagle_epoch, trainer.peagle_first = 100, 3, first
    trainer.maybe_save_checkpoint("interrupted")
"""


def test_an_interruption_saves_the_steps_of_the_epoch_or_all_of_it_while_it_validates(
    trainer: Path,
) -> None:
    done = subprocess.run(
        [str(trainer), "-c", INTERRUPT], capture_output=True, text=True, cwd=TRAINER.parent,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["3 10 1", "3 0 1"]  # nothing before the first step


def test_of_several_processes_the_first_writes_the_events(trainer: Path, tmp_path: Path) -> None:
    file, program = (
        tmp_path / "events.jsonl",
        "import peagle_trainer as t; t.write_event(kind='val')",
    )
    for rank in ("0", "1"):
        subprocess.run(
            [str(trainer), "-c", program], cwd=TRAINER.parent, check=True,
            env={**os.environ, "RANK": rank, EVENTS_VARIABLE: str(file)},
        )  # fmt: skip
    assert len(file.read_text().splitlines()) == 1
