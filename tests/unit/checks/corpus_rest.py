"""Broken targets, loads and hardware."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from peagle.checkpoints import Checkpoint, FolderSource, read_checkpoint
from peagle.checkpoints.entries import target_from_checkpoint
from peagle.checks import Case
from tests.unit.checkpoints import public_targets as public
from tests.unit.checks.cases import (
    CATALOG,
    OWN_IMAGE,
    catalog_case,
    geometry_case,
    make_case,
    speculators_case,
    tiny_case,
)
from tests.unit.checks.corpus import Broken
from tests.unit.checks.corpus_versions import NEW_AMI, VERSIONS
from tests.unit.checks.damage import Damage, tiny

AWS = CATALOG.runtimes.accounts["us-east-1"]


REGISTRY = f"{AWS}.dkr.ecr.us-east-1.amazonaws.com/vllm"


def tokenizers(case: Case, target: dict[str, object], head: dict[str, object]) -> Case:
    """The case with these descriptions of the two tokenizers."""
    assert case.target_checkpoint is not None
    assert case.drafter_checkpoint is not None
    return replace(
        case,
        target_checkpoint=replace(case.target_checkpoint, tokenizer=target),
        drafter_checkpoint=replace(case.drafter_checkpoint, tokenizer=head),
    )


def _own_target(_: Path) -> Case:
    read = read_checkpoint(FolderSource(tiny("target")))
    own = make_case(CATALOG, target_from_checkpoint(read), None, target_checkpoint=read)
    return replace(own, own_target=True)


def _public_target(config: dict[str, Any], **more: Any) -> Case:
    read = Checkpoint("./public", config)
    case = make_case(CATALOG, target_from_checkpoint(read), None, target_checkpoint=read, **more)
    return replace(case, own_target=True)


def block_fp8(size: int, instance: str, **settings: str) -> Case:
    """Qwen3-235B-A22B in FP8 with blocks of 128, whose experts are 1,536 wide."""
    qwen = public.config(
        "Qwen3MoeForCausalLM", "qwen3_moe", "4096 12288 94 64 4 151936 262144", head_dim=128,
        moe_intermediate_size=1536, num_experts=128, num_experts_per_tok=8,
        quantization_config=public.BLOCK_FP8,
    )  # fmt: skip
    return _public_target(
        qwen,
        tensor_parallel_size=size,
        instance_type=instance,
        ami=NEW_AMI,
        settings={name.replace("_", "-"): value for name, value in settings.items()},
    )


TARGETS = (
    Broken(
        "a class that vLLM 0.23 was the last to have",
        lambda _: _public_target(
            public.config("BaichuanForCausalLM", "baichuan", "4096 11008 32 32 32 64000 4096"),
            vllm="0.28.0"
        ),
        "model-not-served",
        not_shown="there is no small checkpoint of such a class"
    ),
    Broken(
        "layers whose cache is not modelled",
        lambda _: _public_target(public.EXAONE4 | {"layer_types": ["rwkv"] * 64}),
        "cache-estimated",
        "warning",
        not_shown="a warning about the memory shown"
    ),
    Broken(
        "a target without a catalogue entry",
        _own_target,
        "target-not-in-catalogue",
        "note",
        not_shown="a note about what is unknown"
    ),
    Broken(
        "120b instead of 20b",
        lambda f: geometry_case(
            f,
            "gpt-oss-20b",
            target={
                "num_hidden_layers": 36,
                "layer_types": ["sliding_attention", "full_attention"] * 18,
                "num_local_experts": 128
            }
        ),
        "target-differs"
    ),
    Broken(
        "a head instead of the target",
        lambda f: geometry_case(
            f, "gemma-4-31b", target={"eagle_config": {"use_aux_hidden_state": True}}
        ),
        "target-differs"
    ),
    Broken(
        "a missing layer of the target",
        lambda f: tiny_case(f, target=Damage(drop=tuple(
            f"model.layers.5.{part}.weight" for part in (
                "input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
                "mlp.down_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                "self_attn.o_proj")))),
        "target-incomplete"
    ),
    Broken(
        "too many layers in the target",
        lambda f: tiny_case(
            f,
            Damage(set_keys={"eagle_config.eagle_aux_hidden_state_layer_ids": [2, 4, 6]}),
            target=Damage(set_keys={"num_hidden_layers": 6}),
            entry={"layers": 6}
        ),
        "target-incomplete"
    ),
    Broken(
        "missing embeddings of the target",
        lambda f: tiny_case(f, target=Damage(drop=("model.embed_tokens.weight",))),
        "target-incomplete"
    ),
    Broken(
        "a target in FP8",
        lambda f: geometry_case(
            f,
            "qwen3-coder-30b",
            target={"quantization_config": {"quant_method": "fp8"}}
        ),
        "target-numerics",
        "warning"
    ),
    Broken(
        "a target that the engine quantizes",
        lambda f: catalog_case("qwen3-coder-30b", settings={"quantization": "fp8"}),
        "target-numerics",
        "warning"
    ),
    Broken(
        "a tokenizer of another size",
        lambda f: tokenizers(tiny_case(f), {"vocab_size": 1024}, {"vocab_size": 1000}),
        "tokenizer-differs"
    ),
    Broken(
        "a tokenizer with other special tokens",
        lambda f: tokenizers(
            tiny_case(f), {"special_tokens": {"1": "<end>"}}, {"special_tokens": {"1": "<s>"}}
        ),
        "tokenizer-differs",
        "warning"
    ),
)  # fmt: skip


def harmony_case(model: str, image: str = OWN_IMAGE) -> Case:
    """GPT-OSS as a plan serves it from ``model``."""
    return catalog_case("gpt-oss-20b", environment={"SM_VLLM_MODEL": model}, image=image)


VOCABULARIES = (
    Broken(
        "weights of the hub in a container without a network",
        lambda f: replace(harmony_case("openai/gpt-oss-20b"), network_isolation=True),
        "isolated-container",
        not_shown="engines on this machine have its network",
    ),
    Broken(
        "streamed weights in a container without a network",
        lambda f: replace(harmony_case("s3://bucket/gpt-oss/"), network_isolation=True),
        "isolated-container",
        not_shown="engines on this machine have its network",
    ),
    Broken(
        "a key for an instance with local storage",
        lambda f: catalog_case(
            "tiny", instance_type="ml.g5.xlarge", ami=NEW_AMI, kms_key="alias/models"
        ),
        "volume-key",
        "note",
        not_shown="this machine has no such storage",
    ),
    Broken(
        "a container in the user's own VPC",
        lambda f: replace(harmony_case("openai/gpt-oss-20b"), in_vpc=True),
        "vpc-routes",
        "note",
        not_shown="a note about what must be reached",
    ),
    Broken(
        "mounted weights without a vocabulary",
        lambda f: replace(harmony_case("/opt/ml/model"), image=None),
        "vocabulary-download",
        "warning",
        not_shown="GPT-OSS does not fit on this machine",
    ),
    Broken(
        "streamed weights without a vocabulary",
        lambda f: harmony_case("s3://bucket/gpt-oss/"),
        "vocabulary-download",
        "warning",
        not_shown="GPT-OSS does not fit on this machine",
    ),
    Broken(
        "an image of one's own that may find a vocabulary",
        lambda f: harmony_case("/opt/ml/model/target"),
        "vocabulary-download",
        "note",
        not_shown="GPT-OSS does not fit on this machine",
    ),
    Broken(
        "weights of the hub and their vocabulary",
        lambda f: harmony_case("openai/gpt-oss-20b"),
        "vocabulary-download",
        "note",
        not_shown="GPT-OSS does not fit on this machine",
    ),
)


LOADS = (
    Broken("K above the trained K", lambda f: tiny_case(f, k=9), "k-above-trained"),
    Broken(
        "K above what a speculators head proposes",
        lambda f: _unknown_training(speculators_case(f, "peagle", k=6)),
        "k-above-trained",
    ),
    Broken(
        "K of a head whose trained K is unknown",
        lambda f: catalog_case("qwen3-8b", k=20),
        "k-above-trained",
        "note",
        not_shown="it is about what is known of the pair",
    ),
    Broken(
        "a context above the target's",
        lambda f: tiny_case(f, max_model_len=4096),
        "context-above-target",
    ),
    Broken(
        "a context above the head's",
        lambda f: tiny_case(f, Damage(set_keys={"max_position_embeddings": 512})),
        "context-above-drafter",
        "warning",
    ),
    Broken(
        "a context above the head's, real geometry",
        lambda f: geometry_case(
            f, "gpt-oss-120b", changes={"max_position_embeddings": 4096}, max_model_len=8192
        ),
        "context-above-drafter",
        "warning",
    ),
    Broken(
        "a long context on the plain head",
        lambda f: catalog_case("gpt-oss-20b", max_model_len=131072),
        "long-context-head",
        "warning",
    ),
    Broken(
        "a context of 10,001 tokens on the plain head",
        lambda f: catalog_case("gpt-oss-20b", max_model_len=10001),
        "long-context-head",
        "note",
    ),
    Broken(
        "a short context on the long head",
        lambda f: catalog_case("gpt-oss-20b+p-eagle-long", max_model_len=4096),
        "long-context-head",
        "note",
    ),
    Broken(
        "heads that three GPUs cannot divide",
        lambda f: tiny_case(f, tensor_parallel_size=3),
        "tensor-parallel",
    ),
    Broken(
        "a block of the experts' weights on two GPUs",
        lambda _: block_fp8(8, "ml.p5.48xlarge"),
        "quantization-block",
        not_shown="it needs eight GPUs",
    ),
    Broken(
        "fewer GPUs than the instance has, since more would cut a block",
        lambda _: block_fp8(4, "ml.p5.48xlarge"),
        "quantization-block",
        "note",
        not_shown="it needs four GPUs",
    ),
    Broken(
        "more GPUs than the instance has",
        lambda f: catalog_case(
            "gpt-oss-120b", tensor_parallel_size=8, instance_type="ml.g6e.12xlarge", ami=NEW_AMI
        ),
        "tensor-parallel",
    ),
    Broken(
        "a step as small as the draft slots",
        lambda f: tiny_case(f, k=8, settings={"max-num-batched-tokens": 7}),
        "drafting-slots",
    ),
    Broken(
        "slots of every request, up to 0.27",
        lambda f: tiny_case(f, k=5, concurrency=100_000, vllm="0.27.1"),
        "drafting-slots",
    ),
    Broken(
        "more requests than a step drafts for",
        lambda f: catalog_case("gpt-oss-20b", concurrency=100_000),
        "drafting-slots",
        "warning",
    ),
    Broken(
        "more requests than a step of a small GPU drafts for",
        lambda f: catalog_case(
            "gpt-oss-20b", k=7, concurrency=147, instance_type="ml.g6e.xlarge", ami=NEW_AMI
        ),
        "drafting-slots",
        "warning",
    ),
    Broken(
        "90 as the share of memory",
        lambda f: tiny_case(f, settings={"gpu-memory-utilization": 90}),
        "memory-utilization",
    ),
    Broken(
        "memory as text",
        lambda f: tiny_case(f, settings={"gpu-memory-utilization": "most"}),
        "memory-utilization",
    ),
    Broken(
        "a token for the hub",
        lambda f: tiny_case(f, environment={"HF_TOKEN": "hf_abcdefghijk"}),
        "secret-in-environment",
        not_shown="vLLM runs with it; the endpoint's description shows it",
    ),
    Broken(
        "a folder of modules",
        lambda f: tiny_case(f, environment={"PYTHONPATH": "/tmp/modules"}),
        "code-variable",
        "warning",
        not_shown="vLLM runs with it; the modules in the folder are loaded",
    ),
    Broken(
        "no padding in parallel",
        lambda f: tiny_case(f, speculative_settings={"disable_padded_drafter_batch": True}),
        "speculative-setting",
    ),
    Broken(
        "a drafter on three GPUs",
        lambda f: tiny_case(f, speculative_settings={"draft_tensor_parallel_size": 3}),
        "speculative-setting",
    ),
)


HARDWARE = (
    Broken(
        "a version without an image",
        lambda f: catalog_case("tiny", vllm="0.24.7"),
        "runtime-unknown",
    ),
    Broken(
        "an unknown instance type",
        lambda f: catalog_case("tiny", instance_type="ml.g6.3xlarge"),
        "instance-unknown",
    ),
    Broken(
        "an instance type that the region does not have",
        lambda f: catalog_case("tiny", instance_type="ml.g7e.2xlarge", region="eu-west-1"),
        "instance-not-in-region",
    ),
    Broken(
        "an instance type that the region may not have",
        lambda f: catalog_case(
            "tiny", instance_type="ml.g6.xlarge", region="eu-west-1", ami=NEW_AMI
        ),
        "instance-region-unknown",
        "note",
    ),
    Broken(
        "an unknown region", lambda f: catalog_case("tiny", region="us-east-9"), "region-unknown"
    ),
    Broken(
        "a version without an image in the region",
        lambda f: catalog_case("tiny", vllm="0.26.0", region="cn-north-1"),
        "image-not-in-region",
    ),
    Broken(
        "an image of another registry",
        lambda f: catalog_case("tiny", image="docker.io/vllm/vllm-openai:latest"),
        "image-not-in-ecr",
    ),
    Broken(
        "an image of another region",
        lambda f: catalog_case("tiny", image=OWN_IMAGE, region="eu-west-1"),
        "image-not-in-region",
    ),
    Broken(
        "AWS's image by its tag",
        lambda f: catalog_case(
            "tiny", image=f"{REGISTRY}:0.28.0-gpu-py312-cu130-ubuntu24.04-sagemaker"
        ),
        "image-by-tag",
        "note",
        not_shown="nothing is wrong with the engine",
    ),
    Broken(
        "an own image by its tag",
        lambda f: catalog_case("tiny", image=OWN_IMAGE),
        "image-by-tag",
        "note",
        not_shown="nothing is wrong with the engine",
    ),
    Broken(
        "an image of another vLLM",
        lambda f: catalog_case("tiny", image=OWN_IMAGE.replace(":1", ":0.26.0-mine")),
        "image-version",
    ),
    Broken(
        "an image on another CUDA",
        lambda f: catalog_case("tiny", image=OWN_IMAGE.replace(":1", ":0.28.0-gpu-cu129")),
        "image-version",
    ),
    Broken(
        "a tag that AWS does not have",
        lambda f: catalog_case("tiny", image=f"{REGISTRY}:0.28.0-gpu-py313-cu130-sagemaker"),
        "image-version",
    ),
    Broken(
        "AWS's image without statistics in the log",
        lambda f: catalog_case(
            "tiny",
            image=f"{REGISTRY}:0.28.0-gpu-py312-cu130-ubuntu24.04-sagemaker",
            settings={"disable-log-stats": True},
        ),
        "log-stats-off",
    ),
    Broken(
        "SageMaker's own AMI on g6",
        lambda f: catalog_case("tiny", instance_type="ml.g6.xlarge"),
        "ami-driver",
    ),
    Broken(
        "any archive of compiled code",
        lambda f: catalog_case("tiny", environment={"PEAGLE_WARM_SHA256": "any"}),
        "warm-unpinned",
        "warning",
        not_shown="vLLM loads what its caches hold",
    ),
    Broken(
        "code of the model's repository",
        lambda f: catalog_case("tiny", settings={"trust-remote-code": True}),
        "remote-code",
        not_shown="vLLM runs with it, and runs the code that a repository has",
    ),
    Broken(
        "code of the repository through overrides",
        lambda f: catalog_case(
            "tiny", environment={"SM_VLLM_HF_OVERRIDES": '{"trust_remote_code": true}'}
        ),
        "remote-code",
        not_shown="vLLM runs with it, and runs the code that a repository has",
    ),
    Broken(
        "weights that are pickles",
        lambda f: catalog_case("tiny", settings={"load-format": "pt"}),
        "weights-format",
        not_shown="the tiny pair has no pickles, which vLLM would load",
    ),
    Broken(
        "a family that nothing is known about",
        lambda f: catalog_case("tiny", instance_type="ml.p6-b300.48xlarge"),
        "ami-unverified",
        "warning",
        not_shown="needs an instance of SageMaker",
    ),
    Broken(
        "a family whose driver no known AMI has",
        lambda f: catalog_case("tiny", instance_type="ml.g7.2xlarge", ami=NEW_AMI),
        "ami-unverified",
        "warning",
        not_shown="needs an instance of SageMaker",
    ),
    Broken(
        "an unknown AMI",
        lambda f: catalog_case(
            "tiny", instance_type="ml.g6.xlarge", ami="al2023-ami-sagemaker-inference-gpu-5-1"
        ),
        "ami-unknown",
    ),
    Broken(
        "an AMI with a driver for CUDA 12",
        lambda f: catalog_case(
            "tiny", instance_type="ml.p5.48xlarge", ami="al2-ami-sagemaker-inference-gpu-3-1"
        ),
        "ami-driver",
    ),
    Broken(
        "a driver that is older than the GPU",
        lambda f: catalog_case(
            "tiny",
            vllm="0.19.0",
            instance_type="ml.g7e.2xlarge",
            ami="al2-ami-sagemaker-inference-gpu-3-1",
        ),
        "gpu-too-new",
    ),
    Broken(
        "a driver that is older than the image and the GPU",
        lambda f: catalog_case(
            "tiny", instance_type="ml.g7e.2xlarge", ami="al2-ami-sagemaker-inference-gpu-3-1"
        ),
        "ami-driver",
    ),
    Broken(
        "4-bit weights on a T4",
        lambda f: catalog_case("gpt-oss-20b", instance_type="ml.g4dn.xlarge", ami=NEW_AMI),
        "gpu-too-old",
    ),
)


def _unknown_training(case: Case) -> Case:
    assert case.drafter is not None
    return replace(case, drafter=case.drafter.model_copy(update={"k_trained": None}))


REST = (*TARGETS, *VOCABULARIES, *LOADS, *VERSIONS, *HARDWARE)
