"""Broken pairs for the real engine, and how their outcomes are reported."""

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from peagle.checks import Case
from peagle.data import data_folder
from peagle.engine.machine import Engine
from tests.engine.serving import script_environment

DRIVER = Path(__file__).parent / "drafting.py"
MAX_TOKENS = 32
FEW_TOKENS = 8
"""Enough to see that no draft, or nearly none, is accepted."""
TILES = ("tiles", "pretend")
"""Before a case: vLLM chooses its kernels as on a CPU with AMX tiles."""
GUARD = ("peagle_serve.plugins", "install_small_layers")
"""Before a case: what the container does on a CPU before it starts vLLM."""
PROMPTS: tuple[str, ...] = tuple(
    entry["prompt"]
    for entry in json.loads((data_folder("model_catalog") / "peagle/tiny/prompts.json").read_text())
)[:8]
"""Some of the held-out prompts."""
USUAL: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 40,  # of 128 tokens: enough for all requests, and quickly cleared
}
Stage = Literal["config", "start", "request", "served", "killed"]


@dataclass(frozen=True)
class Outcome:
    """The last stage that a pair reached, its error, the tokens of the answers, and the drafts."""

    stage: Stage
    error: str
    answers: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    drafts: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()

    @property
    def acceptance_length(self) -> float:
        """Tokens per step; 1.0 if no draft was accepted. Raises AssertionError without drafts."""
        assert self.drafts, self
        return 1 + self.accepted / self.drafts


@dataclass(frozen=True)
class Trial:
    """A pair for the engine: the case for the rules, and what else the engine needs.

    ``engine``: arguments of vLLM that no rule reads, or that replace those of the case. ``before``:
    functions, each with its module, to call in the process of the engine. ``tokens``: of an answer.
    """

    make: Callable[[Path], Case]
    engine: Mapping[str, Any] = field(default_factory=dict)
    prompts: tuple[str, ...] = PROMPTS
    autodetected: bool = False
    before: tuple[tuple[str, str], ...] = ()
    tokens: int = MAX_TOKENS


def outcomes_of(
    cases: Mapping[str, tuple[Trial, Case]], engine: Engine, folder: Path
) -> dict[str, Outcome]:
    """What vLLM does with each of these cases; their files must still be there."""
    asked, result_document = folder / "cases.json", folder / "outcomes.json"
    asked.write_text(json.dumps([_asked(name, *case) for name, case in cases.items()]))
    done = subprocess.run(
        [str(engine.python), str(DRIVER), str(asked), str(result_document)],
        capture_output=True,
        text=True,
        check=False,
        env=script_environment(),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {
        name: _outcome(entry) for name, entry in json.loads(result_document.read_text()).items()
    }


def engine_arguments(trial: Trial, case: Case) -> dict[str, Any]:
    """vLLM's arguments for this case, as keywords of its EngineArgs."""
    assert case.target_checkpoint is not None
    assert case.drafter_checkpoint is not None
    settings = {**USUAL, "max_model_len": case.max_model_len}
    for name, value in case.settings.items():
        off = name.startswith("no-") and value is True
        settings[name.removeprefix("no-").replace("-", "_")] = False if off else value
    if case.tensor_parallel_size > 1:
        settings["tensor_parallel_size"] = case.tensor_parallel_size
    if trial.autodetected:
        return {**settings, "model": case.drafter_checkpoint.location, **trial.engine}
    assert case.drafter is not None
    speculation: dict[str, Any] = {
        "method": case.drafter.method,
        "model": case.drafter_checkpoint.location,
        "num_speculative_tokens": case.k,
        **case.speculative_settings,
    }
    if case.drafter.parallel_drafting:
        speculation["parallel_drafting"] = True
    target = case.target_checkpoint.location
    return {**settings, "model": target, "speculative_config": speculation, **trial.engine}


def _asked(name: str, trial: Trial, case: Case) -> dict[str, Any]:
    arguments = engine_arguments(trial, case)
    stages = arguments.get("pipeline_parallel_size", 1) * arguments.get("tensor_parallel_size", 1)
    return {
        "name": name,
        "engine": arguments,
        "environment": dict(case.options.environment),
        "config_only": stages > 1,  # this machine has one device
        "before": trial.before,
        "prompts": trial.prompts,
        "max_tokens": trial.tokens,
    }


def _outcome(entry: Mapping[str, Any]) -> Outcome:
    return Outcome(
        stage=entry["stage"],
        error=entry["error"],
        answers=tuple(map(tuple, entry.get("answers", ()))),
        drafts=int(entry.get("drafts", 0)),
        accepted=int(entry.get("accepted", 0)),
        accepted_at=tuple(entry.get("accepted_at", ())),
    )
