"""What the user may not ask: options outside of their limits or of what AWS and vLLM accept, that
need another one, or that exclude each other. One row is one mistake and its code."""

from typing import Any

import pytest

from peagle.errors import PeagleError
from peagle.planning.overrides import parse_pairs
from tests.support import raises_code
from tests.unit.planning.small_catalog import plan

OWN = "123456789012.dkr.ecr.us-east-1.amazonaws.com/chat:0.28.0"
EIGHT = {"instance_type": "ml.p6-b200.48xlarge"}
VPC = {"subnets": ("subnet-0a1b2c3d",), "security_groups": ("sg-0a1b2c3d",)}
TOPIC = "arn:aws:sns:us-west-1:123456789012:t"
Row = dict[str, Any]
REFUSED: dict[str, list[Row]] = {
    "out-of-range": [
        {"k": 0}, {"k": -3}, {"concurrency": 0}, {"max_model_len": 0}, {"instance_count": 0},
        {"max_instances": 10**10}, {"max_instances": 4, "target_concurrency": 0.0},
        {"scale_to_zero": True, "target_concurrency": 0.0}, EIGHT | {"copies": 0},
        *({option: limit} for limit in (0, -1, float("nan"), float("inf"))
          for option in ("min_tokens_per_second", "max_price_per_hour")),
        {"rollout": "rolling", "baking_time": 4000}, {"ttl": 30}, {"ttl": 400 * 86400},
        {"startup_timeout": 3601}, {"download_timeout": 59}, {"requests": 9, "within": 60},
        {"prompt_tokens": 0}, {"cached_prompt_tokens": 5000},
        {"prompt_tokens": 80, "cached_prompt_tokens": 10, "shared_prompt_tokens": 20},
    ],
    "missing-option": [
        {"min_instances": 2}, {"target_concurrency": 4.0}, {"rollout_step": 2},
        {"baking_time": 60}, {"within": 3600}, {"capture_percent": 5}, {"capture_kms_key": "k"},
        {"capture_retention": 9}, {"alarm_topic": TOPIC}, {"baked_weights": True},
        {"baked_weights": True, "image": OWN.replace("123456789012", "1" * 12)},
    ],
    "conflicting-options": [
        {"drafter": "eagle3", "speculation": False}, {"k": 3, "speculation": False},
        {"pair": "chat+eagle3", "drafter": "ngram"}, {"ttl": 600, "no_limit": True},
        {"scale_to_zero": True, "min_instances": 1, "max_instances": 2},
        {"copies": 4, "capture_data": "s3://b-b/f"},
        {"scale_to_zero": True, "capture_data": "s3://b-b/f"},
        {"rollout": "all-at-once", "rollout_step": 2},
        {"weights_by": "stream", "settings": {"load-format": "x"}},
        {"weights_by": "stream", "baked_weights": True, "image": OWN},
        {"warm_sha256": ("a" * 64,), "allow_unpinned_warm": True},
    ],
    "unknown-target": [{"pair": "chatt"}],
    "unknown-drafter": [{"drafter": "eagle4"}],
    "drafts-without-head": [{"pair": "chat+ngram", "drafter": "s3://bucket/head"}],
    "region-unknown": [{"region": "eu-west-11"}],
    "vllm-below-minimum": [{"vllm": "0.12.0"}],
    "invalid-version": [{"vllm": "latest"}],
    "instance-unknown": [{"instance_type": "ml.g5.xlarg"}],
    "invalid-image-name": [
        {"image": image} for image in ("two words", 'a"b', "", "x" * 256, "a$b", "line\nbreak")
    ],
    "invalid-name": [
        *({"name": name} for name in ("-a", "a_b", "a.b", "ä", "", "a\n", "a" * 64)),
        {"name_prefix": "-x"}, {"name_prefix": "x" * 33},
    ],
    "invalid-scaling": [
        {"min_instances": 0, "max_instances": 2}, {"min_instances": 2, "max_instances": 2},
        {"max_instances": 4, "instance_count": 5},
        {"scale_to_zero": True, "instance_count": 3, "max_instances": 2},
    ],
    "too-many-copies": [EIGHT | {"copies": 9}],
    "rollout-of-copies": [
        EIGHT | {"copies": 2, "rollout": kind} for kind in ("canary", "linear", "all-at-once")
    ],
    "decided-by-plan": [
        *({"settings": {name: "4"}} for name in (
            "model", "speculative-config", "speculative-config.model", "max-num-seqs", "port",
            "data-parallel-size", "no-model",
        )),
        *({"environment": {name: "1"}} for name in (
            "SM_VLLM_SEED", "SM_VLLM_MODEL", "HF_MODEL_ID", "SAGEMAKER_BIND_TO_PORT",
            "PEAGLE_ML_ROOT", "PEAGLE_WARM_SHA256", "PEAGLE_WEIGHTS_SHA256",
        )),
    ],
    "invalid-argument": [
        {"settings": {"Seed": "2"}}, {"settings": {"max-num-batched-tokens": "8k"}},
    ],
    "invalid-variable": [{"environment": {"1X": "y"}}],
    "environment-too-large": [
        {"environment": {"X": "y" * 1025}}, {"environment": {f"V{n}": "1" for n in range(100)}},
    ],
    "invalid-pin": [
        {"warm_sha256": ("x",)}, {"warm_sha256": tuple(f"{n:064x}" for n in range(16))},
    ],
    "invalid-topic": [
        {"alarm_topic": "on-call", "observe": True}, {"alarm_topic": TOPIC, "observe": True},
    ],
    "invalid-s3-uri": [
        {"capture_data": "/tmp"}, {"capture_data": "s3://B_"},
        *({option: address} for option in ("model_source", "drafter") for address in (
            "s3://", "s3://b/x", "s3://BUCKET/x", "s3://bucket/a b", "s3://bucket/50%/",
        )),
    ],
    "weights-not-in-s3": [{"weights_by": "stream"}, {"pair": "small", "weights_by": "stream"}],
    "weights-in-s3": [{"image": OWN, "baked_weights": True, "model_source": "s3://bucket/x"}],
    "invalid-network": [
        {"subnets": VPC["subnets"]}, {"security_groups": VPC["security_groups"]},
    ],
    "invalid-id": [
        {"kms_key": "alias/models\n"}, {"permissions_boundary": "${Boundary}"},
        VPC | {"subnets": ("$(id)",)},
    ],
    "invalid-tag": [
        *({"tags": {key: "y"}} for key in ("aws:x", "Peagle:pair", "")),
        *({"tags": {"x": value}} for value in ("$(id)", "${Role}", "a\nb", "y" * 257)),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "options"), [(code, row) for code, rows in REFUSED.items() for row in rows]
)
def test_a_mistake_is_one_line_with_its_code(code: str, options: Row) -> None:
    with raises_code(code, PeagleError) as refused:
        plan(**options)
    assert len(str(refused.value).splitlines()) == 1
    assert refused.value.fix


def test_no_instance_names_the_option_that_is_meant() -> None:
    with pytest.raises(PeagleError) as refused:
        plan(min_instances=0, max_instances=2)
    assert "--scale-to-zero" in refused.value.fix


@pytest.mark.parametrize("texts", [["team"], ["=x"], ["a=b", "a=c"]])
def test_a_tag_is_a_key_and_a_value(texts: list[str]) -> None:
    with raises_code("invalid-tag"):
        parse_pairs(texts, "--tag", "invalid-tag")
