"""Speculators' command line, run by the trainer's Python:

    python peagle_trainer.py train --verifier-name-or-path ...

It is that of ``python -m speculators`` with two additions and one repair. What training reports is
appended as JSON lines to the file in ``$PEAGLE_TRAINING_EVENTS``: its own output is a table for a
terminal. A run that is interrupted saves its step too, so that the same command resumes there. On a
machine without a GPU, torch's accelerator is the CPU, without pinned memory.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

EVENTS = "PEAGLE_TRAINING_EVENTS"
"""Variable: the file to which events are appended."""


def write_event(**event: Any) -> None:
    """Append an event, with the time in epoch seconds: of several processes, the first one's."""
    if (path := os.environ.get(EVENTS)) and os.environ.get("RANK", "0") == "0":
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), **event}) + "\n")


class Events(logging.Handler):
    """The metrics of speculators, which it logs as a dict: ``train`` or ``val``, and the step."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the numbers that ``peagle train`` shows."""
        if not isinstance(record.msg, dict):
            return
        metrics = record.msg.get("train") or record.msg.get("val") or {}
        write_event(
            kind="val" if "val" in record.msg else "step",
            epoch=record.msg.get("epoch"),
            step=record.msg.get("global_step"),
            loss=metrics.get("loss", metrics.get("loss_epoch")),
        )


def report_training() -> None:
    """Report the length of the training and its metrics; save the step of an interrupted run."""
    from speculators.train.trainer import Trainer

    run, train_epoch = Trainer.run_training, Trainer.train_epoch
    save = Trainer.maybe_save_checkpoint

    def run_training(self: Any) -> None:
        logging.getLogger("speculators.metrics").addHandler(Events())  # its own set-up is done
        steps, epochs = len(self.train_loader), self.config.num_epochs
        write_event(kind="start", epochs=epochs, steps=steps, step=self.global_step)
        run(self)

    def counted_epoch(self: Any, epoch: int, **arguments: Any) -> None:
        self.peagle_epoch = epoch
        self.peagle_first = self.global_step - getattr(self, "_resume_local_step", 0)
        train_epoch(self, epoch, **arguments)
        self.peagle_first = None

    def save_checkpoint(self: Any, epoch: int | str, local_step: int = 0) -> None:
        if epoch == "interrupted":
            epoch, begun = self.peagle_epoch, self.peagle_first is not None
            local_step = self.global_step - self.peagle_first if begun else 0  # 0: all of the epoch
            if begun and not local_step:
                return
            self.config = self.config._replace(checkpoint_freq=1)  # this epoch is saved, too
        save(self, epoch, local_step)

    Trainer.run_training, Trainer.train_epoch = run_training, counted_epoch
    Trainer.maybe_save_checkpoint = save_checkpoint


def use_cpu() -> None:
    """Let torch's accelerator be the CPU."""
    import torch

    cpu = torch.device("cpu")
    accelerator = torch.accelerator
    accelerator.current_accelerator = lambda check_available=False: None if check_available else cpu
    accelerator.is_available = lambda: False
    accelerator.synchronize = lambda *_, **__: None
    accelerator.set_device_index = lambda *_: None
    from speculators.train import checkpointer, dataloader, trainer

    trainer.get_local_rank = lambda: cpu
    checkpointer.get_current_device = lambda: "cpu"
    loader = dataloader.DataLoader
    dataloader.DataLoader = lambda *args, **options: loader(
        *args, **{**options, "pin_memory": False}
    )


def main() -> None:
    """Run the command in ``sys.argv``."""
    import torch

    if not torch.accelerator.is_available():
        use_cpu()
    if sys.argv[1:2] == ["train"]:
        report_training()
    elif "RANK" in os.environ:  # generate-offline-data, in processes of torch.distributed.run
        sys.argv += ["--rank", os.environ["RANK"], "--world-size", os.environ["WORLD_SIZE"]]
    from speculators.__main__ import app

    app()


if __name__ == "__main__":
    main()
