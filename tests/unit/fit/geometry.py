"""The pairs' real geometry, from the config.json files under ``model_catalog/configs``."""

import json
from pathlib import Path
from typing import Any

from peagle.checkpoints.models import Checkpoint
from peagle.fit.building import read_drafter, read_target
from peagle.fit.estimate import FitCase, without_speculation
from peagle.fit.report import ApplyChange
from peagle.fit.weights import DraftModel, TargetModel
from peagle.vllm.defaults import EngineConfig

ROOT = Path(__file__).resolve().parents[3] / "model_catalog" / "configs"
TARGETS = ("gpt-oss-20b", "gpt-oss-120b", "qwen3-coder-30b", "gemma-4-31b")
H200 = EngineConfig(
    gpu="H200", gpu_count=1, gpu_memory_gib=139.8, capability=90, vllm="0.26.0",
    max_model_len=32768, max_num_seqs=128, max_num_batched_tokens=8192, images=False,
)  # fmt: skip


def checkpoint(name: str, part: str = "target") -> Checkpoint:
    folder = ROOT / name / part
    return Checkpoint(str(folder), json.loads((folder / "config.json").read_text()))


def target(name: str) -> TargetModel:
    return read_target(checkpoint(name))


def drafter(name: str, head: str = "p-eagle", has_embedding: bool = True) -> DraftModel:
    return read_drafter(checkpoint(name, head), target(name), has_embedding)


def case(name: str, head: str | None = "p-eagle", **engine: Any) -> FitCase:
    """The pair on an H200, with changes of the engine; K 7 where there is a head."""
    chosen = H200._replace(k=7 if head else 0)
    return FitCase(target(name), drafter(name, head) if head else None, chosen._replace(**engine))


def with_engine(fit_case: FitCase, **engine: Any) -> FitCase:
    """The case with changes of the engine."""
    return fit_case._replace(engine=fit_case.engine._replace(**engine))


def changes_of(fit_case: FitCase) -> ApplyChange:
    """Changes of the engine by the names of its options, for advice."""

    def apply_change(setting: str, value: object) -> FitCase:
        if setting == "no-speculation":
            return without_speculation(fit_case)
        names = {"tp": "tensor_parallel_size"}
        return with_engine(fit_case, **{names.get(setting, setting.replace("-", "_")): value})

    return apply_change
