"""The folder of a trained head: the head as the engine loads it, its entry for a catalogue with the
measured acceptance as evidence, and the record of its training.

    config.json, model.safetensors     the head: `--drafter HEAD` of check, deploy, bench
    acceptance.json                    by position and domain: `peagle verdict --acceptance`
    held-out.jsonl                     the prompts of it: `peagle bench NAME --acceptance`
    training.json                      recipe, data, versions, epochs and times
    .catalog/ORGANIZATION/TARGET.yaml  the target with this head: `peagle --catalog HEAD/.catalog`
    .catalog/evidence/TARGET.json      the acceptance as evidence of that catalogue
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peagle import __version__
from peagle.bench.acceptance import acceptance_bytes
from peagle.bench.result import utc_now
from peagle.catalog.schema import NO_GPU, Drafter
from peagle.catalog.writing import entry_text
from peagle.checkpoints.entries import drafter_from_checkpoint
from peagle.engine.machine import find_trainer, read_package
from peagle.errors import UserError
from peagle.store import read_json, replacing, write_file, write_json, write_text
from peagle.train.data import write_prompts
from peagle.train.recipe import Training, train_arguments
from peagle.train.run import Epoch, Trained
from peagle.weights.layout import checkpoint_at

RECORD, ACCEPTANCE, CATALOG = "training.json", "acceptance.json", ".catalog"
HELD_OUT = "held-out.jsonl"
_PACKAGES = ("speculators", "torch", "transformers")
_HEAD_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")

_FLOOR_SHARE = 0.6
"""Of the measured acceptance length above 1, what a deployment must prove at least: prompts differ
from the held-out ones."""


def require_empty(folder: Path) -> None:
    """Raise UserError for a folder that has files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fix = "name another folder with -o"
        raise UserError(f"{folder} exists and is not an empty folder", fix, "folder-not-empty")


def require_own(training: Training) -> None:
    """Raise UserError for an output that has files, such as the target's own, or a head of other
    data or another recipe. The same training may end again, or go on with more epochs."""
    folder, recipe = training.output, asdict(training.recipe)
    if (folder / RECORD).exists():
        record = read_json(folder / RECORD)
        earlier = {**record.get("recipe", {}), "epochs": recipe["epochs"]}
        if (record.get("data", {}).get("sha256"), earlier) != (training.data.sha256, recipe):
            message = f"{folder} has a head of other data or another recipe"
            raise UserError(message, "name another folder with -o", "other-training")
    elif not (folder / ".work").exists():
        require_empty(folder)


def write_result(training: Training, trained: Trained) -> Path:
    """Write the folder of the best head; return the entry of its catalogue."""
    folder, best = training.output, trained.best
    folder.mkdir(parents=True, exist_ok=True)  # with a work folder elsewhere there is none yet
    for pattern in _HEAD_FILES:
        for file in best.folder.glob(pattern):
            with replacing(folder / file.name) as temporary:
                shutil.copyfile(file, temporary)
    write_file(folder / ACCEPTANCE, acceptance_bytes(best.acceptance))
    write_prompts(training.data.held_out, folder / HELD_OUT)
    write_json(folder / RECORD, _record(training, trained))
    return _write_entry(training, trained)


def _record(training: Training, trained: Trained) -> dict[str, Any]:
    """What is needed to repeat a training."""
    data, trainer = training.data, find_trainer(training.setup.gpu)
    versions = {package: read_package(trainer, package) for package in _PACKAGES}
    return {
        "made": utc_now(),
        "target": training.plan.target.id,
        "k": trained.best.acceptance.k,
        "acceptance_length": round(trained.best.length, 3),
        "versions": {"peagle": __version__, "vllm": training.plan.runtime.vllm, **versions},
        "data": {
            "sources": data.sources, "sha256": data.sha256, "train": len(data.train),
            "held_out": len(data.held_out),
        },
        "recipe": asdict(training.recipe),
        "arguments": train_arguments(training.recipe, training.setup),
        "hidden_states": dict(trained.states),
        "lossless": dict(trained.lossless),
        "seconds": {name: round(seconds, 1) for name, seconds in trained.seconds.items()},
        "chosen_epoch": trained.best.number,
        "epochs": [
            {"epoch": epoch.number, "loss": epoch.loss,
             "acceptance_length": round(epoch.length, 3)}
            for epoch in trained.epochs
        ],
    }  # fmt: skip


def _make_drafter(training: Training, best: Epoch, name: str) -> Drafter:
    """The head in the catalogue, at the K with which its acceptance was measured."""
    return drafter_from_checkpoint(checkpoint_at(str(best.folder))).model_copy(
        update={
            "name": name,
            "title": f"P-EAGLE head for {training.plan.target.id}, {best.acceptance.started[:10]}",
            "weights": f"./{name}",
            "revision": None,
            "licence": "unknown",
            "min_vllm": training.plan.runtime.vllm,
            "k_trained": training.recipe.depths,
            "k_recommended": best.acceptance.k,
            "acceptance_floor": round(1 + _FLOOR_SHARE * (best.length - 1), 2),
            "source": f"peagle train, {RECORD} in its folder",
        }
    )


def _write_entry(training: Training, trained: Trained) -> Path:
    """The entry of the target with the head as its default drafter, and the evidence. Weights in
    folders are links, since a catalogue's file has them next to itself."""
    folder, target = training.output, training.catalog.targets[training.plan.target.id]
    slug = re.sub(r"[^a-z0-9.]+", "-", folder.resolve().name.lower()).strip("-.")
    name = f"{slug or 'new'}-head"
    file = folder / CATALOG / f"{target.id}.yaml"
    shutil.rmtree(folder / CATALOG, ignore_errors=True)
    (head := file.parent / name).mkdir(parents=True)
    for pattern in _HEAD_FILES:
        for each in folder.glob(pattern):
            os.link(each, head / each.name)
    weights = target.weights
    if Path(training.setup.target).is_dir():
        weights = "./target"
        (file.parent / weights).symlink_to(training.setup.target, target_is_directory=True)
    others = (each for each in target.drafters if not (each.weights or "").startswith("./"))
    drafters = (_make_drafter(training, trained.best, name), *others)
    fields = {"weights": weights, "default_drafter": name, "drafters": drafters}
    write_text(file, entry_text(target.model_copy(update=fields), {}, file))
    evidence = folder / CATALOG / "evidence" / f"{target.short_name}-{name}.json"
    write_json(evidence, _evidence(training, trained, name))
    return file


def _evidence(training: Training, trained: Trained, name: str) -> Mapping[str, Any]:
    acceptance = trained.best.acceptance
    total, *domains = (
        {
            "drafter": name, "k": acceptance.k,
            "acceptance_length": round(part.acceptance.length, 3),
            "low": round(part.interval.low, 3), "high": round(part.interval.high, 3),
            "per_position": [round(rate, 4) for rate in part.acceptance.per_position],
            "domain": part.domain, "drafts": part.acceptance.drafts,
        }
        for part in (acceptance.total, *acceptance.domains)
    )  # fmt: skip
    return {
        "pair": f"{training.plan.target.id}+{name}",
        "date": acceptance.started[:10],
        "script": "peagle train",
        "device": acceptance.server.gpu or NO_GPU,
        "engine": {"name": "vllm", "version": training.plan.runtime.vllm},
        "results": [total],
        "domains": domains,
        "lossless": dict(trained.lossless),
    }
