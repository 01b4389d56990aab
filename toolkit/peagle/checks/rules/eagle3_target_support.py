"""A target whose class cannot pass its layers' hidden states to an EAGLE-3 head.

vLLM rejects it at start: up to 0.21 by an allow-list of model types, later by class.
"""

from peagle.case import Case
from peagle.catalog.tables import VersionRule
from peagle.checks.registry import Findings, Rule

RULE = Rule("eagle3-target-support", about="version", vllm_notices="at start")

_TYPES = {
    "Llama": "llama",
    "Qwen": "qwen",
    "MiniCPM": "minicpm",
    "GptOss": "gpt_oss",
    "HunYuanVL": "hunyuan_vl",
    "HunYuanDenseV1": "hunyuan_v1_dense",
    "Afmoe": "afmoe",
    "Gemma4": "gemma4",
}
"""Class name prefix -> model_type, for targets whose config.json was not read."""


def check(case: Case) -> Findings:
    name = case.architecture.class_name
    for entry in RULE.entries(case) if case.is_eagle else ():
        if not _supported(case, name, entry):
            yield RULE.of_entry(entry, "target", f"{case.target.id} ({name})")


def _supported(case: Case, name: str, entry: VersionRule) -> bool:
    if entry.value == "not-class":
        return name not in entry.names
    kind = _model_type(case, name)
    # vLLM checks whether the model type contains a name of the list.
    return any(part in kind for part in entry.names)


def _model_type(case: Case, name: str) -> str:
    config = case.target_checkpoint.config if case.target_checkpoint else {}
    inner = config.get("text_config") or config
    model_type = inner.get("model_type") if isinstance(inner, dict) else None
    known = (kind for start, kind in _TYPES.items() if name.startswith(start))
    return str(model_type) if model_type else next(known, name.lower())
