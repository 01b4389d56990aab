"""A --quantization that contradicts the quantization_config of the target's checkpoint.

vLLM compares both at start (0.28.0, config/model.py, _verify_quantization) and stops.
"""

from peagle.case import Case
from peagle.checkpoints.architecture import quantization_settings
from peagle.checks.registry import Findings, Rule

RULE = Rule("quantization-differs", about="target", vllm_notices="at start")

_NAME = "quantization"
_SAME = {
    "gptq": {"gptq_marlin", "auto_gptq", "marlin", "moe_wna16"},
    "awq": {"awq_marlin", "auto_awq", "marlin", "moe_wna16"},
    "mxfp4": {"gpt_oss_mxfp4"},
}
"""``quant_method`` -> other values with which vLLM loads it (override_quantization_method)."""

_ANY_CHECKPOINT = "humming"
_REPLACED = "modelopt"
"""vLLM replaces the argument by what the checkpoint's own algorithm needs."""

_STORED = {"awq", "gptq", *_SAME["awq"], *_SAME["gptq"]}
"""Methods of weights that are stored quantized: vLLM does not make them while it loads."""


def check(case: Case) -> Findings:
    asked = case.settings.get(_NAME)
    if not isinstance(asked, str) or asked == _ANY_CHECKPOINT:
        return
    if case.target_read is not None:
        stored = quantization_settings(case.target_read.config)
        method = str(stored.get("quant_method", "")).lower()
        unquantized = not stored
    else:
        # The catalogue has the format of the weights, which several methods may share.
        method, unquantized = case.target.quantization or "", case.target.quantization is None
        if method not in _SAME and asked not in _STORED:
            return
    if unquantized and asked in _STORED:
        message = f"--{_NAME} {asked}, but the target's weights are not quantized"
        yield RULE.error("target", message, f"leave --{_NAME} out, or use weights in {asked}")
    elif method and method != _REPLACED and asked not in {method, *_SAME.get(method, ())}:
        message = f"--{_NAME} {asked} contradicts the target's config.json, which has {method}"
        yield RULE.error("target", message, f"leave --{_NAME} out: vLLM reads it in config.json")
