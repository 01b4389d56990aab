"""K, vLLM, image, AMI, name, context and load: choices, refusals and reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peagle.checks import check
from peagle.checks.rules.version import unknown_version
from peagle.errors import NotFound, Refused, UserError
from peagle.render.image_names import is_own_image, pinned_base
from tests.support import raises_code
from tests.unit.checks.cases import make_case
from tests.unit.planning.small_catalog import (
    CATALOG,
    CHAT,
    P_EAGLE,
    because,
    codes,
    finding_of,
    plan,
    with_target,
)


def test_k_is_the_recommended_one_with_its_source() -> None:
    made = plan()
    assert made.speculation is not None
    assert made.speculation.k == 5
    assert because(made, "k") == "recommended for P-EAGLE head for Chat (its card)"


def test_a_k_from_the_options_has_no_reason() -> None:
    made = plan(k=8)
    assert made.speculation is not None
    assert made.speculation.k == 8
    assert because(made, "k") is None
    assert codes(made, "error") == []


def test_k_above_training_is_an_error() -> None:
    made = plan(k=9)
    finding = finding_of(made, "error")
    assert (finding.code, finding.where) == ("k-above-trained", "k")
    assert finding.message == "P-EAGLE head for Chat: K=9 exceeds the trained K of 8"
    assert "--k 8 or less" in finding.fix
    assert made.findings[0] == finding, "errors come first"


@pytest.mark.parametrize("k", [0, -3])
def test_k_below_one_is_refused(k: int) -> None:
    with raises_code("out-of-range", UserError) as refused:
        plan(k=k)
    assert f"not {k}" in refused.value.message
    assert "--no-speculation" in refused.value.fix


def test_draftless_methods_take_any_k() -> None:
    assert codes(plan("chat+ngram", k=40), "error") == []


def test_vllm_is_the_catalogues_default() -> None:
    made = plan()
    assert made.runtime.vllm == "0.28.0"
    assert because(made, "vllm") == "the catalogue's default, checked 2026-07-01"
    assert because(plan(vllm="0.28"), "vllm") is None
    assert plan(vllm="0.28").runtime == made.runtime


def test_vllm_below_the_minimum_of_the_head_is_an_error() -> None:
    made = plan(vllm="0.17.1")
    assert codes(made, "error") == ["vllm-below-minimum"]
    assert "P-EAGLE head for Chat needs vLLM 0.18.0 or later" in made.findings[0].message
    assert codes(plan("chat+eagle3", vllm="0.17.1"), "error") == []


def test_vllm_below_the_minimum_of_the_target_is_an_error() -> None:
    newer = with_target(CHAT.model_copy(update={"min_vllm": "0.30.0"}))
    made = plan(catalog=newer, speculation=False)
    assert "Chat needs vLLM 0.30.0 or later" in made.findings[0].message


OWN_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/vllm"


@pytest.mark.parametrize("missing", ["0.27.0", "0.18.1", "0.99.0"])
def test_a_version_without_an_image_ends_a_plan_with_the_finding_of_check(missing: str) -> None:
    (finding,) = check(make_case(CATALOG, CHAT, P_EAGLE, vllm=missing), only={"runtime-unknown"})
    with raises_code("runtime-unknown", NotFound) as refused:
        plan(vllm=missing)
    assert (refused.value.message, refused.value.fix) == (finding.message, finding.fix)
    assert refused.value.exit_code == 2


def test_an_own_image_may_have_a_version_that_the_catalogue_does_not_have() -> None:
    made = plan(vllm="0.99.0", image=f"{OWN_IMAGE}:0.99.0")
    assert codes(made, "error") == []
    assert (made.runtime.vllm, made.runtime.image) == ("0.99.0", f"{OWN_IMAGE}:0.99.0")
    old = plan(vllm="0.12.0", image=f"{OWN_IMAGE}:0.12.0")
    assert codes(old, "error") == ["vllm-below-minimum"]


def test_the_version_that_a_fix_names_is_not_below_the_minimum() -> None:
    case = make_case(CATALOG, CHAT, P_EAGLE, vllm="0.17.0")
    (finding,) = check(case, only={"runtime-unknown"})
    assert finding.fix.startswith("use --vllm 0.19.0, ")
    newer = CHAT.model_copy(update={"min_vllm": "0.95.0"})
    (finding,) = check(make_case(CATALOG, newer, None, vllm="0.96.0"), only={"runtime-unknown"})
    assert finding.fix == "use your own image with --image"


def test_without_a_newer_version_or_an_own_image_the_fix_is_another_pair() -> None:
    newer = CHAT.model_copy(update={"min_vllm": "0.95.0"})
    known = unknown_version(make_case(CATALOG, CHAT, P_EAGLE, vllm="0.17.0"), takes_image=False)
    none = unknown_version(make_case(CATALOG, newer, P_EAGLE, vllm="0.96.0"), takes_image=False)
    assert known is not None
    assert known.fix == "use --vllm 0.19.0"
    assert none is not None
    assert none.fix == "choose another pair: no image is new enough for Chat"


def test_a_too_old_version_without_an_image_is_refused_as_too_old() -> None:
    with raises_code("vllm-below-minimum", Refused) as refused:
        plan(vllm="0.12.0")
    assert "needs vLLM 0.18.0 or later" in refused.value.message
    with raises_code("invalid-version", UserError) as refused:
        plan(vllm="latest")
    assert "'latest'" in refused.value.message


def test_known_problems_are_findings_on_affected_versions() -> None:
    assert "old-bug" in codes(plan(vllm="0.19.0"), "warning")
    assert "old-bug" not in codes(plan(vllm="0.28.0"))
    always = P_EAGLE.problems[0].model_copy(update={"vllm": None, "level": "error"})
    drafter = P_EAGLE.model_copy(update={"problems": (always,)})
    broken = with_target(CHAT.model_copy(update={"drafters": (drafter,)}))
    assert codes(plan(catalog=broken), "error") == ["old-bug"]


def test_the_image_is_that_of_version_and_region() -> None:
    made = plan(region="eu-west-1")
    assert made.runtime.image == (
        "222222222222.dkr.ecr.eu-west-1.amazonaws.com/vllm:0.28.0-gpu-cu130"
    )
    assert because(made, "region") is None
    assert because(plan(), "region") == "neither --region nor AWS_REGION is set"


def test_an_unknown_region_suggests_the_nearest() -> None:
    with raises_code("region-unknown", NotFound) as refused:
        plan(region="eu-west-11")
    assert refused.value.fix.startswith("did you mean eu-west-1")


def test_a_version_that_a_region_lacks_is_an_error() -> None:
    made = plan(region="ap-east-1")
    assert codes(made, "error") == ["image-not-in-region"]
    assert "use --vllm 0.19.0" in made.findings[0].fix


def test_the_users_image_replaces_that_of_aws() -> None:
    own = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"
    made = plan(image=own, copies=1)
    assert made.runtime.image == own
    assert because(made, "image") is None
    assert codes(made) == ["gpus-idle", "image-by-tag"], "ml.g5.12xlarge has four GPUs"


def test_an_image_of_aws_with_a_known_digest_is_planned_by_it() -> None:
    digest = f"sha256:{'d' * 64}"
    table = CATALOG.runtimes
    known = [one.model_copy(update={"digest": digest}) for one in table.runtimes]
    exact = table.model_copy(update={"runtimes": tuple(known)})

    by_digest, by_tag = plan(catalog=replace(CATALOG, runtimes=exact)), plan()

    name = by_tag.runtime.image.rpartition(":")[0]
    assert by_digest.runtime.image == f"{name}@{digest}"
    assert "image-by-tag" in codes(by_tag, "note")
    assert "image-by-tag" not in codes(by_digest)
    assert by_digest.proof.source == "log"
    assert not is_own_image(by_digest, exact)
    assert not is_own_image(by_tag, exact)
    assert pinned_base(by_digest, exact) == f"{name}@{digest}"
    assert pinned_base(by_tag, exact) == f"{by_tag.runtime.image}@{digest}"


def test_the_stock_image_is_proved_from_the_log_and_an_own_one_from_counters() -> None:
    assert plan().proof.source == "log"
    own = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"
    assert plan(image=own).proof.source == "counters"
    given = "111111111111.dkr.ecr.us-east-1.amazonaws.com/vllm:0.28.0-gpu-cu130"
    assert plan(image=given).proof.source == "log", "named by the user, and AWS's"


@pytest.mark.parametrize(
    ("image", "code"),
    [
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1", "image-in-another-region"),
        ("docker.io/me/mine:1", "image-not-in-ecr"),
        ("public.ecr.aws/me/mine:1", "image-not-in-ecr"),
    ],
)
def test_an_image_that_sagemaker_cannot_pull_is_an_error(image: str, code: str) -> None:
    assert codes(plan(image=image), "error") == [code]


@pytest.mark.parametrize("image", ["two words", 'a"b', "", "x" * 256, "a$b", "line\nbreak"])
def test_an_invalid_image_name_is_refused(image: str) -> None:
    with raises_code("invalid-image-name", UserError) as refused:
        plan(image=image)
    assert "dkr.ecr.us-east-1.amazonaws.com/NAME:TAG" in refused.value.fix


def test_the_ami_is_named_on_the_families_that_need_it() -> None:
    assert plan(instance_type="ml.g6e.xlarge").runtime.ami == "the-ami"
    made = plan(instance_type="ml.g7e.2xlarge")
    assert made.runtime.ami is None
    assert because(made, "ami") == "AWS's rule for AMIs does not cover g7e"
    assert plan(instance_type="ml.p6-b200.48xlarge").runtime.ami is None


@pytest.mark.parametrize("name", ["a" * 64, "-a", "a-", "a_b", "a.b", "ä", "", "a b", "a\n"])
def test_an_invalid_endpoint_name_is_refused(name: str) -> None:
    with raises_code("invalid-name", UserError) as refused:
        plan(name=name)
    fix = "shorten --name" if len(name) > 63 else "use letters, digits and hyphens"
    assert refused.value.fix.startswith(fix)


@pytest.mark.parametrize("name", ["a", "a" * 63, "A--b-9"])
def test_a_valid_endpoint_name_is_accepted(name: str) -> None:
    assert plan(name=name).name == name


def test_a_short_name_with_a_dot_gives_a_valid_endpoint_name() -> None:
    dotted = with_target(CHAT.model_copy(update={"short_name": f"chat-1.5-{'x' * 70}"}))
    name = plan("acme/chat", catalog=dotted).name
    assert name.startswith("peagle-chat-1-5-")
    assert len(name) == 63


def test_the_default_context_is_that_of_the_catalogue() -> None:
    made = plan()
    assert made.max_model_len == 4096
    assert "which supports more" in str(because(made, "max_model_len"))
    assert because(plan(max_model_len=1000), "max_model_len") is None


def test_a_context_longer_than_the_models_support_is_a_finding() -> None:
    assert codes(plan(max_model_len=8193), "error") == ["context-above-target"]
    assert codes(plan(max_model_len=8192), "error") == []
    assert "context-above-drafter" in codes(plan(max_model_len=4097), "warning")
    assert "8,193 tokens" in plan(max_model_len=8193).findings[0].message


@pytest.mark.parametrize("options", [{}, {"speculation": False}])
def test_a_context_too_short_for_the_proof_is_an_error(options: dict[str, Any]) -> None:
    least = len("Hello?") + 64 + 128
    assert codes(plan(max_model_len=least, **options), "error") == []
    for length in (1, 64, least - 1):
        finding = finding_of(plan(max_model_len=length, **options), "error")
        assert finding.code == "context-too-small"
        assert f"--max-model-len {least} or more" in finding.fix


def test_the_load_becomes_max_num_seqs() -> None:
    made = plan()
    assert made.concurrency == 8
    assert because(made, "concurrency") is not None
    made = plan(concurrency=32)
    at = made.engine_arguments.index("--max-num-seqs")
    assert made.engine_arguments[at + 1] == "32"
    assert because(made, "concurrency") is None


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"concurrency": 0}, "--concurrency"),
        ({"max_model_len": 0}, "--max-model-len"),
        ({"instance_count": 0}, "--instance-count"),
    ],
)
def test_numbers_below_one_are_refused(options: dict[str, Any], flag: str) -> None:
    with raises_code("out-of-range", UserError) as refused:
        plan(**options)
    assert f"{flag} 0 " in refused.value.message


def test_a_gated_target_has_a_warning() -> None:
    gated = with_target(CHAT.model_copy(update={"gated": True}))
    assert "target-is-gated" in codes(plan(catalog=gated), "warning")
    assert "target-is-gated" not in codes(plan(catalog=gated, model_source="s3://b-b/x"))


def test_every_decision_has_one_reason_and_no_option_has_any() -> None:
    whats = [reason.what for reason in plan().reasons]
    assert len(whats) == len(set(whats))
    given = plan(
        "chat+p-eagle",
        name="mine",
        region="us-east-1",
        instance_type="ml.g7e.2xlarge",
        instance_count=1,
        k=5,
        max_model_len=4096,
        concurrency=8,
        prompt_tokens=2048,
        output_tokens=256,
        vllm="0.28.0",
        image="123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
    )
    assert [reason.what for reason in given.reasons] == [
        "tensor_parallel_size",
        "instance_without_speculation",
        "speculation",
        "ami",
        "--no-enable-prefix-caching",
        "PROCESS_AUTO_RECOVERY",
        "download_timeout_seconds",
        "startup_timeout_seconds",
    ]


def test_an_unknown_pair_suggests_the_nearest() -> None:
    with raises_code("unknown-target", NotFound) as refused:
        plan("chatt", catalog=CATALOG)
    assert refused.value.fix.startswith("did you mean chat?")
