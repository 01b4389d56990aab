"""Where each rule begins and ends: the largest value that it accepts and the smallest that it
reports, and the neighbouring cases that it leaves alone."""

from typing import Any

import pytest

from peagle.checks import check
from tests.unit.checks.cases import OWN_IMAGE, catalog_case
from tests.unit.checks.corpus_rest import REGISTRY
from tests.unit.checks.corpus_versions import NEW_AMI

AWS_IMAGE = f"{REGISTRY}:0.28.0-gpu-py312-cu130-ubuntu24.04-sagemaker"
OLD_AMI = "al2-ami-sagemaker-inference-gpu-3-1"
NO_DIGEST = "0" * 64

Row = tuple[str, dict[str, Any], str]
ROWS: dict[str, tuple[Row, ...]] = {
    "context-above-target": (
        ("tiny", {"max_model_len": 2048}, ""),
        ("tiny", {"max_model_len": 2049}, "error --max-model-len 2048"),
    ),
    "context-above-drafter": (
        ("tiny", {"max_model_len": 2048}, ""),
        ("tiny", {"max_model_len": 2049}, ""),
        ("tiny+ngram", {"max_model_len": 2048}, ""),
    ),
    "long-context-head": (
        ("gpt-oss-20b", {"max_model_len": 10_000}, ""),
        ("gpt-oss-20b", {"max_model_len": 10_001}, "note --drafter p-eagle-long"),
        ("gpt-oss-20b", {"max_model_len": 32_768}, "note --drafter p-eagle-long"),
        ("gpt-oss-20b", {"max_model_len": 32_769}, "warning --drafter p-eagle-long"),
        ("gpt-oss-20b+p-eagle-long", {"max_model_len": 10_000}, ""),
        ("gpt-oss-20b+p-eagle-long", {"max_model_len": 9999}, "note --drafter p-eagle"),
        ("gpt-oss-20b+eagle3", {"max_model_len": 32_769}, ""),
    ),
    "k-above-trained": (
        ("tiny", {"k": 8}, ""),
        ("tiny", {"k": 9}, "error --k 5"),
        ("gpt-oss-20b", {"k": 10}, ""),
        ("gpt-oss-20b", {"k": 11}, "error --k 7"),
        ("gpt-oss-20b+eagle3", {"k": 5}, ""),
        ("qwen3-8b", {"k": 3}, "note --k 7"),
    ),
    "memory-utilization": (
        ("tiny", {"settings": {"gpu-memory-utilization": 1}}, ""),
        ("tiny", {"settings": {"gpu-memory-utilization": 1.0}}, ""),
        ("tiny", {"settings": {"gpu-memory-utilization": 1.01}}, "error"),
        ("tiny", {"settings": {"gpu-memory-utilization": 0.01}}, ""),
        ("tiny", {"settings": {"gpu-memory-utilization": 0}}, "error"),
        ("tiny", {"settings": {"gpu-memory-utilization": True}}, "error"),
        ("tiny", {"settings": {"gpu-memory-utilization": "most"}}, "error"),
        ("tiny", {"settings": {"gpu-memory-utilization": 10}}, "error set it to 0.1"),
        ("tiny", {"settings": {"gpu-memory-utilization": 9.9}}, "error"),
        ("tiny", {"settings": {"gpu-memory-utilization": 100}}, "error set it to 1"),
        ("tiny", {"settings": {"gpu-memory-utilization": 101}}, "error"),
    ),
    "tensor-parallel": (
        ("gpt-oss-20b", {"tensor_parallel_size": 4, "instance_type": "ml.g6e.12xlarge"}, ""),
        ("gpt-oss-20b", {"tensor_parallel_size": 5, "instance_type": "ml.g6e.12xlarge"},
         "error --tp 4"),
        ("gpt-oss-20b", {"tensor_parallel_size": 5}, "error --tp 4"),
        ("gpt-oss-20b", {"tensor_parallel_size": 8}, ""),
        ("gpt-oss-20b", {"tensor_parallel_size": 7}, "error --tp 4"),
    ),
    "region-unknown": (
        ("tiny", {"region": "us-east-9"}, "error"),
        ("tiny", {"region": "us-east-9", "image": OWN_IMAGE}, ""),
        ("tiny", {"region": "us-east-1"}, ""),
        ("tiny", {}, ""),
    ),
    "instance-unknown": (
        ("tiny", {"instance_type": "ml.g6.xlarge"}, ""),
        ("tiny", {"instance_type": "ml.g6.3xlarge"}, "error --instance-type ml.g6.xlarge"),
    ),
    "instance-not-in-region": (
        ("tiny", {"instance_type": "ml.g7e.2xlarge", "region": "us-east-1"}, ""),
        ("tiny", {"instance_type": "ml.g7e.2xlarge", "region": "eu-west-1"}, "error"),
        ("tiny", {"instance_type": "ml.g7e.2xlarge"}, ""),
    ),
    "instance-region-unknown": (
        ("tiny", {"instance_type": "ml.g6.xlarge", "region": "us-east-1"}, ""),
        ("tiny", {"instance_type": "ml.g6.xlarge", "region": "eu-west-1"}, "note"),
        ("tiny", {"instance_type": "ml.g6.xlarge", "region": "us-east-9"}, ""),
        ("tiny", {"instance_type": "ml.g7e.2xlarge", "region": "eu-west-1"}, ""),
    ),
    "gpu-too-old": (
        ("gpt-oss-20b", {"instance_type": "ml.g4dn.xlarge"}, "error"),
        ("gpt-oss-20b", {"instance_type": "ml.g5.xlarge"}, ""),
        ("gpt-oss-20b", {"instance_type": "ml.g4dn.xlarge", "on_cpu": True}, ""),
        ("tiny", {"instance_type": "ml.g4dn.xlarge"}, "error"),
    ),
    "ami-unknown": (
        ("tiny", {"ami": NEW_AMI}, ""),
        ("tiny", {"ami": "other"}, f"error --ami {NEW_AMI}"),
    ),
    "ami-driver": (
        ("tiny", {"instance_type": "ml.g6.xlarge"}, f"error --ami {NEW_AMI}"),
        ("tiny", {"instance_type": "ml.g6.xlarge", "on_cpu": True}, ""),
        ("tiny", {"instance_type": "ml.g6.xlarge", "ami": NEW_AMI}, ""),
        ("tiny", {"instance_type": "ml.g7e.2xlarge"}, ""),
        ("tiny", {"instance_type": "ml.g6.xlarge", "ami": OLD_AMI}, f"error --ami {NEW_AMI}"),
        ("tiny", {"instance_type": "ml.g6.xlarge", "ami": OLD_AMI, "vllm": "0.19.0"}, ""),
        ("tiny", {"ami": OLD_AMI}, f"error --ami {NEW_AMI}"),
    ),
    "ami-unverified": (
        ("tiny", {"instance_type": "ml.g6.xlarge"}, ""),
        ("tiny", {"instance_type": "ml.g7e.2xlarge"}, f"note --ami {NEW_AMI}"),
        ("tiny", {"instance_type": "ml.g7e.2xlarge", "ami": NEW_AMI}, "note --ami default"),
        ("tiny", {"instance_type": "ml.g7e.2xlarge", "on_cpu": True}, ""),
        ("tiny", {"instance_type": "ml.g7.2xlarge", "ami": NEW_AMI}, "warning"),
        ("tiny", {"instance_type": "ml.g7.2xlarge"}, "warning"),
        ("tiny", {"instance_type": "ml.p6-b300.48xlarge"}, f"warning --ami {NEW_AMI}"),
    ),
    "image-not-in-ecr": (
        ("tiny", {"image": "mine:1"}, "error"),
        ("tiny", {"image": "docker.io/mine:1"}, "error"),
        ("tiny", {"image": "mine"}, "error"),
        ("tiny", {"image": OWN_IMAGE}, ""),
    ),
    "image-not-in-region": (
        ("tiny", {"image": OWN_IMAGE, "region": "us-east-1"}, ""),
        ("tiny", {"image": OWN_IMAGE, "region": "eu-west-1"}, "error --region us-east-1"),
        ("tiny", {"image": OWN_IMAGE}, ""),
        ("tiny", {"vllm": "0.26.0", "region": "cn-north-1"}, "error --vllm 0.28.0"),
        ("tiny", {"vllm": "0.26.0", "region": "us-east-1"}, ""),
        ("tiny", {"vllm": "0.26.0", "region": "cn-north-1", "image": "docker.io/x:1"}, ""),
    ),
    "image-by-tag": (
        ("tiny", {"image": f"{OWN_IMAGE}@sha256:{NO_DIGEST}"}, ""),
        ("tiny", {"image": OWN_IMAGE}, "note"),
        ("tiny", {"image": AWS_IMAGE}, "note"),
    ),
    "image-version": (
        ("tiny", {"image": AWS_IMAGE}, ""),
        ("tiny", {"image": AWS_IMAGE, "vllm": "0.27.1"}, "error --vllm 0.28.0"),
        ("tiny", {"image": OWN_IMAGE}, ""),
    ),
    "log-stats-off": (
        ("tiny", {"image": OWN_IMAGE, "environment": {"VLLM_LOGGING_LEVEL": "WARNING"}}, ""),
        ("tiny", {"image": AWS_IMAGE, "environment": {"VLLM_LOGGING_LEVEL": "debug"}}, ""),
        ("tiny", {"image": AWS_IMAGE, "environment": {"VLLM_LOGGING_LEVEL": "WARNING"}}, "error"),
        ("tiny", {"image": AWS_IMAGE, "settings": {"disable-log-stats": False}}, ""),
    ),
    "runtime-unknown": (
        ("tiny", {"vllm": "0.24.7"}, "error --vllm 0.25.0"),
        ("tiny", {"vllm": "0.24.0"}, ""),
        ("tiny", {"vllm": "0.99.0"}, "error --vllm 0.30.0"),
        ("tiny", {"vllm": "0.24.7", "image": OWN_IMAGE}, ""),
    ),
    "vllm-below-minimum": (
        ("qwen3-8b", {"vllm": "0.21.0", "image": OWN_IMAGE}, "error"),
        ("qwen3-8b", {"vllm": "0.22.0", "image": OWN_IMAGE}, ""),
        ("gpt-oss-20b", {"vllm": "0.17.0", "image": OWN_IMAGE}, "error"),
        ("gpt-oss-20b", {"vllm": "0.18.0", "image": OWN_IMAGE}, ""),
        ("gpt-oss-20b", {"vllm": "0.22.0", "image": OWN_IMAGE}, ""),
        ("tiny", {"vllm": "0.15.0", "image": OWN_IMAGE}, "error"),
        ("tiny", {"vllm": "0.28.0"}, ""),
    ),
    "vllm-cpu-broken": (
        ("tiny", {"vllm": "0.30.0", "on_cpu": True}, "error"),
        ("tiny", {"vllm": "0.28.0", "on_cpu": True}, ""),
        ("tiny", {"vllm": "0.30.0"}, ""),
    ),
    "lora": (
        ("tiny", {"settings": {"enable-lora": True}}, "error"),
        ("tiny", {"k": 1, "settings": {"enable-lora": True}}, "warning"),
        ("tiny", {"settings": {"enable-lora": False}}, ""),
        ("tiny+ngram", {"settings": {"enable-lora": True}}, ""),
    ),
    "speculative-setting": (
        ("tiny", {"speculative_settings": {"rejection_sample_method": "standard"}}, ""),
    ),
    "secret-in-environment": (
        ("tiny", {"environment": {"HF_TOKEN": ""}}, ""),
        ("tiny", {"environment": {"HF_TOKEN": "hf_abcdefghijk"}}, "error"),
        ("tiny", {"environment": {"NAME": "value"}}, ""),
    ),
    "remote-code": (
        ("tiny", {"settings": {"trust-remote-code": False}}, ""),
        ("tiny", {"settings": {"trust-remote-code": True}}, "error"),
    ),
    "target-numerics": (
        ("gpt-oss-20b", {"settings": {"quantization": "mxfp4"}}, ""),
        ("gpt-oss-20b", {"settings": {"quantization": "fp8"}}, "warning"),
        ("gpt-oss-20b", {"settings": {"quantization": ""}}, ""),
        ("gpt-oss-20b+ngram", {"settings": {"quantization": "fp8"}}, ""),
    ),
}  # fmt: skip
"""Code of a rule -> pair, options, and level and options of the fix of what it reports."""


@pytest.mark.parametrize(
    ("code", "pair", "options", "expected"),
    [(code, *row) for code, rows in ROWS.items() for row in rows],
)
def test_a_rule_reports_from_its_boundary_on(
    code: str, pair: str, options: dict[str, Any], expected: str
) -> None:
    report = check(catalog_case(pair, **options), only={code})
    if not expected:
        assert report == ()
        return
    (finding,) = report
    fix = "".join(f" {word}" for word in finding.options)
    if "set it to" in expected:
        fix = f" {finding.fix}"
    assert finding.level + fix == expected
