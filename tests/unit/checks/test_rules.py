"""Properties of every rule, and of running them."""

from pathlib import Path
from typing import Any

import pytest

from peagle.checks import check, list_rules
from peagle.checks.facts import parse_ecr_image, parse_tag_version
from tests.unit.checks.cases import CATALOG, catalog_case, geometry_case, tiny_case
from tests.unit.checks.corpus_rest import block_fp8
from tests.unit.checks.damage import Damage

RULES = list_rules()


def test_every_version_rule_belongs_to_a_rule() -> None:
    """A misspelt code in version_rules.yaml would have no effect."""
    assert {rule.code for rule in CATALOG.version_rules.rules} <= {rule.code for rule in RULES}


def test_errors_come_first_and_the_same_case_gives_the_same(tmp_path: Path) -> None:
    damage = Damage(drop=("mask_hidden",), set_keys={"max_position_embeddings": 256})
    case = tiny_case(tmp_path, damage, k=20)
    levels = [finding.level for finding in check(case)]
    assert levels == ["error", "error", "warning"]
    assert check(case) == check(case)


def test_a_finding_of_a_rule_replaces_the_catalogues_note() -> None:
    cases = [catalog_case("qwen3-coder-30b", settings=s) for s in ({}, {"quantization": "fp8"})]
    quiet, loud = ([f for f in check(c) if f.code == "target-numerics"] for c in cases)
    assert len(quiet) == len(loud) == 1
    assert quiet != loud


def test_the_checkpoint_of_the_target_counts_not_the_catalogue(tmp_path: Path) -> None:
    """A folder with fewer layers is another model, and its layers decide about the head."""
    gone = [
        f"model.layers.{layer}.{part}.weight"
        for layer in (6, 7)
        for part in ("input_layernorm", "post_attention_layernorm")
    ]
    target = Damage(set_keys={"num_hidden_layers": 6}, drop=tuple(gone))
    case = tiny_case(tmp_path, Damage(drop_keys=("eagle_config",)), target=target)
    codes = {finding.code for finding in check(case) if finding.level == "error"}
    assert {"aux-layers-collide", "target-differs"} <= codes


def test_a_wrong_target_is_not_reported_as_an_error_of_its_head(tmp_path: Path) -> None:
    changes = {"hidden_size": 4096, "vocab_size": 64000, "head_dim": 64}
    case = geometry_case(tmp_path, "gpt-oss-20b", target=changes)
    errors = [finding.code for finding in check(case) if finding.level == "error"]
    assert errors == ["target-differs"]


def test_a_catalogue_that_contradicts_its_own_weights_is_wrong(tmp_path: Path) -> None:
    case = tiny_case(tmp_path, entry={"hidden_size": 512})
    first = check(case)[0]
    assert (first.code, first.level) == ("target-differs", "error")
    assert {"256", "512"} <= {*first.message.replace(",", "").split()}


@pytest.mark.parametrize(("pair", "head", "fix"), [
    ("tiny", "eagle3", "use the pair tiny+eagle3,"), ("tiny+eagle3", "p-eagle", "tiny+p-eagle,"),
])  # fmt: skip
def test_a_head_of_the_wrong_kind_names_the_pair_to_use(
    tmp_path: Path, pair: str, head: str, fix: str
) -> None:
    case = tiny_case(tmp_path, pair=pair, head=head)
    assert fix in check(case)[0].fix


@pytest.mark.parametrize(("name", "value"), [
    ("compilation-config.mode", 3), ("no-enforce-eager", True), ("enforce-eager", False),
    ("max-num-seqs", 3), ("disable-log-stats", True),
])  # fmt: skip
def test_an_argument_of_vllm_gets_no_finding(name: str, value: int | bool) -> None:
    assert check(catalog_case("tiny", settings={name: value})) == ()


@pytest.mark.parametrize(("image", "vllm"), [
    ("a/b:0.28.0-gpu-py312-cu130-ubuntu24.04-sagemaker", "0.28.0"),
    ("a/b:v0.20.1-x86_64-cu129", "0.20.1"),
    ("a/b:latest", None),
    ("a/b:2026.11.20.1", None),
])  # fmt: skip
def test_a_tag_has_the_version_of_vllm(image: str, vllm: str | None) -> None:
    assert parse_tag_version(image) == vllm


def test_an_image_in_ecr_has_account_region_and_tag() -> None:
    image = parse_ecr_image("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/me/mine:1@sha256:abc")
    assert image is not None
    assert (image.account, image.region) == ("123456789012", "cn-north-1")
    assert (image.repository, image.tag) == ("me/mine", "1")
    assert parse_ecr_image("docker.io/me/mine:1") is None


@pytest.mark.parametrize(("instance_type", "reported"), [
    (None, True), ("ml.g7e.12xlarge", True), ("ml.g6e.12xlarge", False),
])  # fmt: skip
def test_a_problem_of_some_instances_is_reported_for_these_only(
    instance_type: str | None, reported: bool
) -> None:
    findings = check(catalog_case("gpt-oss-120b", instance_type=instance_type))
    assert ("harmony-errors" in {finding.code for finding in findings}) == reported


@pytest.mark.parametrize("width", [64, 512])
def test_a_wrong_hidden_size_is_named(tmp_path: Path, width: int) -> None:
    for key, code in (("hidden_size", "fc-width"), ("target_hidden_size", "hidden-size-mismatch")):
        case = tiny_case(tmp_path / key, Damage(set_keys={key: width}))
        error = next(finding for finding in check(case) if finding.level == "error")
        assert error.code == code
        assert str(width) in error.message


# When a rule reports and when not: the cases beside those of the corpus.
A10G, A100, L40S, HOPPER = "ml.g5.12xlarge", "ml.p4de.24xlarge", "ml.g6e.12xlarge", "ml.p5.48xlarge"
GEMMA, GPT, QWEN = "gemma-4-31b", "gpt-oss-20b", "qwen3-coder-30b"
KIND, BACKEND = "kv-cache-dtype", "attention-backend"
SMALL = {KIND: "fp8"}
TRITON, SLIDING = "fp8-cache-triton", "sliding-flashinfer"
ESCAPED = '{"a": [{"load\\u005fformat": "hf"}]}'
NESTED = {"draft_load_config": {"load_format": "pt"}}
FORMAT = "weights-format"


def on(instance: str | None, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"instance_type": instance, "settings": settings, **more}


@pytest.mark.parametrize(("code", "pair", "options", "is_reported"), [
    # FlashInfer supports Qwen3-Coder; GPT-OSS has sinks and Gemma-4 heads of two sizes.
    (TRITON, GPT, on(A10G, SMALL), True),
    (TRITON, GPT, on(A100, {KIND: "fp8_e4m3"}), True),
    (TRITON, GEMMA, on(A100, SMALL), True),
    (TRITON, QWEN, on(A100, SMALL | {BACKEND: "triton_attn"}), True),
    (TRITON, QWEN, on(A100, {KIND: "fp8_per_token_head"}), True),
    (TRITON, QWEN, on(A100, SMALL), False),
    (TRITON, GEMMA, on(A100, SMALL | {BACKEND: "FLASHINFER"}), False),
    (TRITON, GPT, on(A100, {KIND: "bfloat16"}), False),
    (TRITON, GPT, on(HOPPER, SMALL), False),
    (TRITON, GPT, on(None, SMALL), False),
    # GPT-OSS with an 8-bit cache ran on FlashAttention 3; Qwen3-Coder has no sliding layers.
    (SLIDING, GEMMA, on(HOPPER, SMALL), True),
    (SLIDING, GEMMA, on(HOPPER, {KIND: "fp8_e5m2"}), True),
    (SLIDING, GPT, on(HOPPER, {BACKEND: "flashinfer"}), True),
    (SLIDING, GEMMA, on(HOPPER, SMALL | {BACKEND: "TRITON_ATTN"}), False),
    (SLIDING, GEMMA, on(HOPPER, SMALL, vllm="0.24.0"), False),
    (SLIDING, GEMMA, on(L40S, SMALL), False),
    (SLIDING, GPT, on(HOPPER, SMALL), False),
    (SLIDING, GPT, on(HOPPER, {KIND: "fp8_e5m2"}), False),
    (SLIDING, QWEN, on(HOPPER, {BACKEND: "FLASHINFER"}), False),
    (FORMAT, "tiny", {"settings": {"load-format": "pt"}}, True),
    (FORMAT, "tiny", {"environment": {"SM_VLLM_load_format": "pt"}}, True),
    (FORMAT, "tiny", {"environment": {"SM_VLLM_X": ESCAPED}}, True),
    (FORMAT, "tiny", {"speculative_settings": NESTED}, True),
    (FORMAT, "tiny", {"settings": {"load-format": "safetensors"}}, False),
    ("code-variable", "tiny", {"environment": {"SM_VLLM_config": "/opt/ml/a.yaml"}}, True),
])  # fmt: skip
def test_a_rule_reports_its_cases_only(
    code: str, pair: str, options: dict[str, Any], is_reported: bool
) -> None:
    assert bool(check(catalog_case(pair, **options), only={code})) is is_reported


@pytest.mark.parametrize(("size", "settings", "levels"), [
    (8, {}, ["error"]),
    (4, {}, ["note"]),
    (8, {"enable_expert_parallel": "true"}, []),
    (4, {"enable_expert_parallel": "true"}, []),
])  # fmt: skip
def test_the_fix_of_a_cut_block_names_sizes_and_whole_experts(
    size: int, settings: dict[str, str], levels: list[str]
) -> None:
    report = check(block_fp8(size, "ml.p5.48xlarge", **settings), only={"quantization-block"})
    assert [finding.level for finding in report] == levels
    for finding in report:
        assert "1, 2, 4" in finding.fix
        assert "--set enable-expert-parallel=true" in finding.fix
