"""Trainings of the tiny pair without an engine and a trainer."""

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.bench import lossless
from peagle.bench.acceptance import AcceptanceRequest, AcceptanceResult, DomainAcceptance
from peagle.bench.lossless import Answers, Transcript
from peagle.bench.result import BenchedServer, BenchSetting, Interval, MeasuredAcceptance
from peagle.bench.workloads import PromptSet
from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.engine.process import EngineProcess, start_time
from peagle.engine.runner import LocalRunner
from peagle.engine.state import LocalEngine
from peagle.planning.plan import Plan
from peagle.store import write_json
from peagle.train import run as running
from peagle.train.data import read_training_data
from peagle.train.recipe import CPU_RECIPE, Training, make_training

CATALOG = load_catalog()
FAKE = Path(__file__).with_name("fake_trainer.py")

LAYER = {
    "mlp.down_proj": (256, 448), "mlp.gate_proj": (448, 256), "mlp.up_proj": (448, 256),
    "self_attn.k_proj": (128, 256), "self_attn.o_proj": (256, 256),
    "self_attn.q_proj": (256, 256), "self_attn.v_proj": (128, 256),
    "input_layernorm": (256,), "post_attention_layernorm": (256,),
}  # fmt: skip
TENSORS: dict[str, tuple[int, ...]] = {
    "embed_tokens.weight": (1024, 256), "lm_head.weight": (1024, 256), "norm.weight": (256,),
    "fc.weight": (256, 768), "mask_hidden": (1, 1, 768), "layers.0.hidden_norm.weight": (256,),
    **{f"layers.{n}.{name}.weight": shape for n in range(4) for name, shape in LAYER.items()},
    **{f"layers.0.self_attn.{name}_proj.weight": (size, 512)
       for name, size in (("k", 128), ("q", 256), ("v", 128))},
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "architectures": ["PEagleDraftModel"],
    "draft_vocab_size": 1024,
    "eagle_aux_hidden_state_layer_ids": [2, 5, 7],
    "mask_token_id": 2,
    "norm_before_residual": False,
    "speculators_model_type": "peagle",
    "speculators_config": {
        "algorithm": "peagle",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 8}],
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "tiny"},
    },
    "transformer_layer_config": {
        "model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 448,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "max_position_embeddings": 2048, "layer_types": ["full_attention"] * 4,
    },
}  # fmt: skip


def write_head(folder: Path) -> Path:
    """A head as speculators writes it, of zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", CONFIG)
    header, end = {}, 0
    for name, shape in TENSORS.items():
        begin, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
    return folder


def acceptance(length: float, k: int = 5) -> AcceptanceResult:
    """A measurement with that acceptance length, the same at all positions."""
    rate = (length - 1) / k
    measured = MeasuredAcceptance(length, (rate,) * k, 1000, "measured")
    part = DomainAcceptance(
        "code", 20, 20, 2000, measured, Interval(length, length - 0.1, length + 0.1)
    )
    server = BenchedServer("tiny", "local", "", "peagle/tiny")
    return AcceptanceResult(
        server, BenchSetting("p-eagle", k), "2026-11-20T10:00:00+00:00", "prompts.jsonl", "0" * 64,
        k, "counters", AcceptanceRequest(), part, (part,),
    )  # fmt: skip


@dataclass
class Workshop:
    """A place where trainings run: which engines were started, and what is measured. The head's
    answers end with ``last_token``, those of the target with 3."""

    folder: Path
    training: Training
    engines: list[str] = field(default_factory=list)
    variables: dict[str, Mapping[str, str]] = field(default_factory=dict)
    lengths: dict[str, float] = field(default_factory=dict)
    last_token: int = 3
    on_start: Callable[[Plan], None] = lambda plan: None

    @property
    def calls(self) -> list[str]:
        """The steps for which the trainer was called."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def train(
        self, epochs: int = 2, observe: running.Observe = lambda progress: None, **recipe: Any
    ) -> running.Trained:
        """Train with so many epochs and other changes of the recipe for a CPU."""
        self.change(recipe=replace(CPU_RECIPE, epochs=epochs, **recipe))
        return running.Run(self.training, observe).train()

    def change(self, **changes: Any) -> None:
        """Change what is trained, with the work folder in the output."""
        training = replace(self.training, **changes)
        self.training = replace(training, work=training.output / ".work")


def make_workshop(folder: Path, patch: pytest.MonkeyPatch) -> Workshop:
    """A workshop below ``folder``."""
    shutil.copy(FAKE, folder / "fake.py")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {folder / "fake.py"} "$@"\n')
    python.chmod(0o755)
    write_head(folder / "head")
    write_json(folder / "states.json", {"tokens": 100, "same": 1.0, "difference": 0.0})
    rows = "".join(f'{{"prompt": "question {n}", "domain": "code"}}\n' for n in range(60))
    (folder / "data.jsonl").write_text(rows)
    data = read_training_data([str(folder / "data.jsonl")], lambda: pytest.fail("no account"))
    output = folder / "output"
    training = make_training("tiny", output, 5, CPU_RECIPE, data, CATALOG, None, None)
    shop = Workshop(folder, training)

    @contextmanager
    def start(plan: Plan, _: object, runner: LocalRunner) -> Iterator[LocalEngine]:
        shop.on_start(plan)
        shop.engines.append(plan.name.rpartition("-")[2])
        shop.variables[shop.engines[-1]] = runner.variables
        process = EngineProcess(os.getpid(), start_time(os.getpid()) or 0, 20_001, "engine.log")
        drafter = plan.drafter.weights.location if plan.drafter and plan.drafter.weights else ""
        environment: Mapping[str, str] = {"drafter": drafter}
        yield LocalEngine(
            plan.name, plan.pair, plan.target.id, "0.28.0", dict(environment), (), process, 0.0
        )

    def open_engine(engine: LocalEngine, _: Catalog) -> SimpleNamespace:
        facts = SimpleNamespace(name=engine.name)
        return SimpleNamespace(
            server=engine, facts=facts, runs_alone=False, read_counters=lambda: None
        )

    def measure(target: SimpleNamespace, *_: Any, **__: Any) -> AcceptanceResult:
        return acceptance(shop.lengths.get(Path(target.server.environment["drafter"]).name, 1.5))

    def answer(prompts: PromptSet, engine: LocalEngine, *_: Any) -> Answers:
        last = shop.last_token if engine.environment["drafter"] else 3
        return [Transcript(prompt.line, (1, 2, last), "") for prompt in prompts.prompts]

    patch.setattr(running, "find_trainer", lambda gpu: python)
    patch.setattr(running, "running_engine", start)
    patch.setattr(running, "open_engine", open_engine)
    patch.setattr(lossless, "transcripts", answer)
    patch.setattr(running, "measure_acceptance", measure)
    return shop
