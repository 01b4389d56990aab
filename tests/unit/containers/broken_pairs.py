"""The pairs of the rules' corpus as environments of the container, and its refusals."""

import json
import re
from pathlib import Path

from peagle.checkpoints import Checkpoint
from peagle.checks import Case
from peagle_serve import heads
from peagle_serve.checks import check, check_pair
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.environment import check_arguments
from peagle_serve.weights import with_model
from tests.unit.containers.arguments import SOURCE


def refusal(case: Case) -> str | None:
    """The container's refusal of this case before vLLM starts; ``None`` if it starts vLLM."""
    environment = environment_of(case)
    try:
        check(environment)
        check_arguments(environment, SOURCE)
        chosen = environment if _no_weights_meant(case) else with_model(environment)
        check_pair(chosen)
    except InvalidEnvironment as refused:
        return str(refused)
    return None


def environment_of(case: Case) -> dict[str, str]:
    """The variables that a plan of this case would have."""
    environment = dict(case.options.environment)
    for name, value in _settings(case).items():
        text = value if isinstance(value, str) else json.dumps(value)
        environment[f"SM_VLLM_{name.upper().replace('-', '_')}"] = text
    environment["SM_VLLM_MODEL"] = _place(case.target_checkpoint, case.target.id)
    if case.drafter is not None:
        environment["SM_VLLM_SPECULATIVE_CONFIG"] = json.dumps(_speculation(case))
    return environment


def _settings(case: Case) -> dict[str, object]:
    return {
        "max-model-len": case.max_model_len,
        "tensor-parallel-size": case.tensor_parallel_size,
        **({} if case.options.concurrency is None else {"max-num-seqs": case.options.concurrency}),
        **case.settings,
    }


def _speculation(case: Case) -> dict[str, object]:
    assert case.drafter is not None
    of_the_user = "" if case.drafter.public else "org/head"
    place = _place(case.drafter_checkpoint, case.drafter.weights or of_the_user)
    named = {"model": place} if place else {}
    parallel = {"parallel_drafting": True} if case.drafter.parallel_drafting else {}
    return {
        "method": case.drafter.method,
        **named,
        "num_speculative_tokens": case.k,
        **parallel,
        **case.drafter.speculative_settings,
        **case.speculative_settings,
    }


def _place(checkpoint: Checkpoint | None, hub_id: str) -> str:
    return checkpoint.location if checkpoint is not None else hub_id.removeprefix("./")


def _no_weights_meant(case: Case) -> bool:
    """Whether it is real geometry: both folders have a config.json only."""
    return case.target_checkpoint is not None and case.target_checkpoint.tensors is None


SETTINGS: dict[str, str] = {
    "AWS's image without statistics in the log": "SM_VLLM_DISABLE_LOG_STATS",
    "code of the model's repository": "SM_VLLM_TRUST_REMOTE_CODE lets code",
    "code of the repository through overrides": "SM_VLLM_HF_OVERRIDES lets code",
    "weights that are pickles": "other weights than safetensors",
    "an empty config.json": "placeholder-missing",
    "no layers in the speculators format": "config-incomplete",
    "no weights": "has no safetensors files",
    "weights in another format": "has no safetensors files (it holds pytorch_model.bin)",
    "a switch that cannot be turned off": "SM_VLLM_NO_DISABLE_LOG_STATS is not an argument",
    "an unknown argument": "SM_VLLM_FOO is not an argument of this vLLM version",
    "an argument of one version only": "did you mean SM_VLLM_ENABLE_PREFIX_CACHING?",
}
"""Case that the container refuses for its variables or its files -> part of the refusal."""
ONLY_IN_THE_TOOLKIT = {
    "a placeholder under a key that this version does not read": "it depends on vLLM's version",
    "biases in config.json only": "vLLM knows which tensors a class needs",
    "no speculators_config": "vLLM finds no class for it and ends",
    "no final norm": "vLLM knows which tensors a class needs",
}
"""Case with a code of ``pair`` with which the container starts vLLM -> why."""
PAIR_CODES = frozenset(
    re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)+)"', Path(heads.__file__).read_text(encoding="utf-8"))
)
"""The codes that ``pair`` reports."""
