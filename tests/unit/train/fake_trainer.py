"""Stands in for the trainer's Python: ``fake_trainer.py [-m LAUNCHER ...] SCRIPT STEP ARGUMENTS``.

It writes what each step of speculators writes, and a line to ``calls`` beside itself. A file
``fail`` beside itself has the message with which the training ends after its first epoch.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

HERE = Path(__file__).parent


def value(name: str) -> Path:
    return Path(sys.argv[sys.argv.index(f"--{name}") + 1])


def event(**fields: object) -> None:
    with open(os.environ["PEAGLE_TRAINING_EVENTS"], "a") as file:
        file.write(json.dumps({"time": 1.0, **fields}) + "\n")


def train() -> None:
    epochs, folder = int(str(value("epochs"))), value("save-path")
    begun = [int(each.name) for each in folder.glob("[0-9]*")]
    first = max(begun, default=-1) + 1
    if (HERE / "slow").exists():  # until it is interrupted

        def save(*_: object) -> None:
            (HERE / "interrupted").touch()
            sys.exit(1)

        signal.signal(signal.SIGTERM, save)
        event(kind="start", epochs=epochs, steps=10, step=0)
        signal.pause()
    event(kind="start", epochs=epochs, steps=10, step=first * 10)
    for epoch in range(first, epochs):
        for step in range(epoch * 10, epoch * 10 + 10):
            loss, now = 5.0 - epoch, 0.5 * step
            event(kind="step", epoch=epoch, step=step, loss=loss, time=now, tokens=250.0)
        shutil.copytree(HERE / "head", folder / str(epoch))
        with (folder / str(epoch) / "model.safetensors").open("r+b") as weights:
            weights.seek(-1, os.SEEK_END)
            weights.write(bytes([epoch]))
        if (HERE / "full").exists():
            sys.exit("OSError: [Errno 28] No space left on device")
        (folder / str(epoch) / "training_state.json").write_text("{}")
        event(kind="val", epoch=epoch, loss=5.0 - epoch)
        if (HERE / "fail").exists():
            sys.exit((HERE / "fail").read_text())


def main() -> None:
    processes = ""
    if sys.argv[1] == "-m":  # those of torch.distributed.run: here one does their work
        processes = f" in {value('nproc-per-node')}"
        del sys.argv[1:6]
    if Path(sys.argv[1]).name == "peagle_states.py":
        step = "states"
        Path(sys.argv[6]).write_text((HERE / "states.json").read_text())
    else:
        step = "dry-run" if "--dry-run" in sys.argv else sys.argv[2]
        if step == "regenerate-responses":
            rows = value("dataset").read_text().splitlines()
            if (HERE / "answers").exists():
                rows = rows[: int((HERE / "answers").read_text())]
            answered = [{"id": f"{n}_gen0", "primary_id": str(n)} for n in range(len(rows))]
            value("outfile").write_text("".join(json.dumps(row) + "\n" for row in answered))
        elif step == "prepare-data":
            value("output").mkdir(exist_ok=True)
            (value("output") / "data.arrow").write_bytes(bytes(1600))
            splits = {"train": {"num_examples": 54}}
            (value("output") / "dataset_info.json").write_text(json.dumps({"splits": splits}))
        elif step == "train":
            train()
        elif step == "dry-run":
            shutil.copytree(HERE / "head", value("save-path"))
    with (HERE / "calls").open("a") as file:
        file.write(f"{step}{processes}\n")


main()
