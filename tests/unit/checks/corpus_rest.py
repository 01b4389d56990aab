"""Broken targets, loads and hardware."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from peagle.checkpoints import Checkpoint, FolderSource, read_checkpoint
from peagle.checkpoints.entries import target_from_checkpoint
from peagle.checkpoints.models import Tokenizer
from peagle.checks import Case
from tests.unit.checkpoints import public_targets as public
from tests.unit.checks.cases import (
    CATALOG,
    OWN_IMAGE,
    catalog_case,
    make_case,
    speculators_case,
    tiny_case,
    with_options,
)
from tests.unit.checks.corpus import Broken, listed, real, tiny_pair
from tests.unit.checks.corpus_versions import NEW_AMI, VERSIONS
from tests.unit.checks.damage import Damage, tiny

AWS = CATALOG.runtimes.accounts["us-east-1"]
REGISTRY = f"{AWS}.dkr.ecr.us-east-1.amazonaws.com/vllm"


def tokenizers(case: Case, target: Tokenizer, head: Tokenizer) -> Case:
    """The case with these descriptions of the two tokenizers."""
    assert case.target_checkpoint is not None
    assert case.drafter_checkpoint is not None
    return with_options(
        case,
        target_checkpoint=replace(case.target_checkpoint, tokenizer=target),
        drafter_checkpoint=replace(case.drafter_checkpoint, tokenizer=head),
    )


def _own_target(_: Path) -> Case:
    read = read_checkpoint(FolderSource(tiny("target")))
    case = make_case(CATALOG, target_from_checkpoint(read), None, target_checkpoint=read)
    return replace(case, own_target=True)


def _public_target(config: dict[str, Any], **more: Any) -> Case:
    read = Checkpoint("./public", config)
    case = make_case(CATALOG, target_from_checkpoint(read), None, target_checkpoint=read, **more)
    return replace(case, own_target=True)


def block_fp8(size: int, instance: str, **settings: str) -> Case:
    """Qwen3-235B-A22B in FP8 with blocks of 128, whose experts are 1,536 wide."""
    return _public_target(
        public.QWEN3_235B_FP8,
        tensor_parallel_size=size,
        instance_type=instance,
        ami=NEW_AMI,
        settings={name.replace("_", "-"): value for name, value in settings.items()},
    )


TARGETS = (
    Broken("a class that vLLM 0.23 was the last to have",
        lambda _: _public_target(public.config("BaichuanForCausalLM", "baichuan",
        "4096 11008 32 32 32 64000 4096"), vllm="0.28.0"), "model-not-served",
        not_shown="there is no small checkpoint of such a class"),
    Broken("layers whose cache is not modelled",
        lambda _: _public_target(public.EXAONE4 | {"layer_types": ["rwkv"] * 64}),
        "cache-estimated", "warning", not_shown="a warning about the memory shown"),
    Broken("a target without a catalogue entry", _own_target, "target-not-in-catalogue", "note",
        not_shown="a note about what is unknown"),
    real("120b instead of 20b", "target-differs", "gpt-oss-20b", target={"num_hidden_layers": 36,
        "layer_types": ["sliding_attention", "full_attention"] * 18, "num_local_experts": 128}),
    tiny_pair("a missing layer of the target", "target-incomplete",
        target=Damage(drop=tuple(f"model.layers.5.{part}.weight" for part in ("input_layernorm",
        "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")))),
    real("a target in FP8", "target-numerics: warning", "qwen3-coder-30b",
        target={"quantization_config": {"quant_method": "fp8"}}),
    listed("a target that the engine quantizes", "target-numerics: warning", "qwen3-coder-30b",
        settings={"quantization": "fp8"}),
    Broken("a tokenizer of another size", lambda f: tokenizers(tiny_case(f), Tokenizer(1024),
        Tokenizer(1000)), "tokenizer-differs"),
    Broken("a tokenizer with other special tokens", lambda f: tokenizers(tiny_case(f),
        Tokenizer(None, {"1": "<end>"}), Tokenizer(None, {"1": "<s>"})), "tokenizer-differs",
        "warning"),
)  # fmt: skip


def harmony_case(model: str, image: str | None = OWN_IMAGE, **options: Any) -> Case:
    """GPT-OSS as a plan serves it from ``model``."""
    environment = {"SM_VLLM_MODEL": model}
    return catalog_case("gpt-oss-20b", environment=environment, image=image, **options)


VOCABULARIES = (
    Broken("weights of the hub in a container without a network",
        lambda f: harmony_case("openai/gpt-oss-20b", network_isolation=True),
        "isolated-container", not_shown="engines on this machine have its network"),
    Broken("streamed weights in a container without a network",
        lambda f: harmony_case("s3://bucket/gpt-oss/", network_isolation=True),
        "isolated-container", not_shown="engines on this machine have its network"),
    Broken("a container in the user's own VPC",
        lambda f: harmony_case("openai/gpt-oss-20b", subnets=("subnet-1",)), "vpc-routes", "note",
        not_shown="a note about what must be reached"),
    Broken("mounted weights without a vocabulary", lambda f: harmony_case("/opt/ml/model",
        image=None), "vocabulary-download", "warning",
        not_shown="GPT-OSS does not fit on this machine"),
    Broken("streamed weights without a vocabulary", lambda f: harmony_case("s3://bucket/gpt-oss/"),
        "vocabulary-download", "warning", not_shown="GPT-OSS does not fit on this machine"),
    Broken("an image of one's own that may find a vocabulary",
        lambda f: harmony_case("/opt/ml/model/target"), "vocabulary-download", "note",
        not_shown="GPT-OSS does not fit on this machine"),
    Broken("weights of the hub and their vocabulary", lambda f: harmony_case("openai/gpt-oss-20b"),
        "vocabulary-download", "note", not_shown="GPT-OSS does not fit on this machine"),
)  # fmt: skip
LOADS = (
    tiny_pair("K above the trained K", "k-above-trained", k=9),
    Broken("K above what a speculators head proposes",
        lambda f: _unknown_training(speculators_case(f, "peagle", k=6)), "k-above-trained"),
    listed("K of a head whose trained K is unknown", "k-above-trained: note", "qwen3-8b", k=20,
        not_shown="it is about what is known of the pair"),
    tiny_pair("a context above the target's", "context-above-target", max_model_len=4096),
    tiny_pair("a context above the head's", "context-above-drafter: warning",
        Damage(set_keys={"max_position_embeddings": 512})),
    listed("a long context on the plain head", "long-context-head: warning", "gpt-oss-20b",
        max_model_len=131072),
    listed("a short context on the long head", "long-context-head: note",
        "gpt-oss-20b+p-eagle-long", max_model_len=4096),
    tiny_pair("heads that three GPUs cannot divide", "tensor-parallel", tensor_parallel_size=3),
    Broken("a block of the experts' weights on two GPUs", lambda _: block_fp8(8, "ml.p5.48xlarge"),
        "quantization-block", not_shown="it needs eight GPUs"),
    Broken("fewer GPUs than the instance has, since more would cut a block", lambda _: block_fp8(4,
        "ml.p5.48xlarge"), "quantization-block", "note", not_shown="it needs four GPUs"),
    listed("more GPUs than the instance has", "tensor-parallel", "gpt-oss-120b",
        tensor_parallel_size=8, instance_type="ml.g6e.12xlarge", ami=NEW_AMI),
    tiny_pair("90 as the share of memory", "memory-utilization",
        settings={"gpu-memory-utilization": 90}),
    tiny_pair("a token for the hub", "secret-in-environment",
        environment={"HF_TOKEN": "hf_abcdefghijk"},
        not_shown="vLLM runs with it; the endpoint's description shows it"),
    tiny_pair("a folder of modules", "code-variable: warning",
        environment={"PYTHONPATH": "/tmp/modules"},
        not_shown="vLLM runs with it; the modules in the folder are loaded"),
)  # fmt: skip
HARDWARE = (
    listed("a version without an image", "runtime-unknown", "tiny", vllm="0.24.7"),
    listed("an unknown instance type", "instance-unknown", "tiny", instance_type="ml.g6.3xlarge"),
    listed("an instance type that the region does not have", "instance-not-in-region", "tiny",
        instance_type="ml.g7e.2xlarge", region="eu-west-1"),
    listed("an instance type that the region may not have", "instance-region-unknown: note",
        "tiny", instance_type="ml.g6.xlarge", region="eu-west-1", ami=NEW_AMI),
    listed("an unknown region", "region-unknown", "tiny", region="us-east-9"),
    listed("a version without an image in the region", "image-not-in-region", "tiny",
        vllm="0.26.0", region="cn-north-1"),
    listed("an image of another registry", "image-not-in-ecr", "tiny",
        image="docker.io/vllm/vllm-openai:latest"),
    listed("an image of another region", "image-not-in-region", "tiny", image=OWN_IMAGE,
        region="eu-west-1"),
    listed("AWS's image by its tag", "image-by-tag: note", "tiny",
        image=f"{REGISTRY}:0.28.0-gpu-py312-cu130-ubuntu24.04-sagemaker",
        not_shown="nothing is wrong with the engine"),
    listed("an own image by its tag", "image-by-tag: note", "tiny", image=OWN_IMAGE,
        not_shown="nothing is wrong with the engine"),
    listed("an image of another vLLM", "image-version", "tiny", image=OWN_IMAGE.replace(":1",
        ":0.26.0-mine")),
    listed("AWS's image without statistics in the log", "log-stats-off", "tiny",
        image=f"{REGISTRY}:0.28.0-gpu-py312-cu130-ubuntu24.04-sagemaker",
        settings={"disable-log-stats": True}),
    listed("SageMaker's own AMI on g6", "ami-driver", "tiny", instance_type="ml.g6.xlarge"),
    listed("code of the model's repository", "remote-code", "tiny",
        settings={"trust-remote-code": True},
        not_shown="vLLM runs with it, and runs the code that a repository has"),
    listed("weights that are pickles", "weights-format", "tiny", settings={"load-format": "pt"},
        not_shown="the tiny pair has no pickles, which vLLM would load"),
    listed("a family that nothing is known about", "ami-unverified: warning", "tiny",
        instance_type="ml.p6-b300.48xlarge", not_shown="needs an instance of SageMaker"),
    listed("a family whose driver no known AMI has", "ami-unverified: warning", "tiny",
        instance_type="ml.g7.2xlarge", ami=NEW_AMI, not_shown="needs an instance of SageMaker"),
    listed("an unknown AMI", "ami-unknown", "tiny", instance_type="ml.g6.xlarge",
        ami="al2023-ami-sagemaker-inference-gpu-5-1"),
    listed("an AMI with a driver for CUDA 12", "ami-driver", "tiny",
        instance_type="ml.p5.48xlarge", ami="al2-ami-sagemaker-inference-gpu-3-1"),
    listed("a driver that is older than the image and the GPU", "ami-driver", "tiny",
        instance_type="ml.g7e.2xlarge", ami="al2-ami-sagemaker-inference-gpu-3-1"),
    listed("4-bit weights on a T4", "gpu-too-old", "gpt-oss-20b", instance_type="ml.g4dn.xlarge",
        ami=NEW_AMI),
)  # fmt: skip


def _unknown_training(case: Case) -> Case:
    assert case.drafter is not None
    return replace(case, drafter=case.drafter.model_copy(update={"k_trained": None}))


REST = (*TARGETS, *VOCABULARIES, *LOADS, *VERSIONS, *HARDWARE)
