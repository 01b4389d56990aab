"""K, vLLM, image, AMI, name, context, load and drafter: choices, refusals and reasons."""

from dataclasses import replace
from typing import Any

import pytest

from peagle.checkpoints import Checkpoint, Tensor
from peagle.checks import check
from peagle.render.image import is_own_image, pinned_base
from tests.support import decide_alike, raises_code
from tests.unit.checks.cases import make_case
from tests.unit.planning.rows import Expected, check_plan
from tests.unit.planning.small_catalog import CATALOG, CHAT, P_EAGLE, codes, plan, with_target

HEAD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 1024, "vocab_size": 32000,
    "draft_vocab_size": 32000, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 8, "intermediate_size": 4096, "max_position_embeddings": 8192,
    "ptd_token_id": 31999,
}  # fmt: skip
EAGLE = {key: value for key, value in HEAD.items() if key != "ptd_token_id"}
MODEL = {"architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "vocab_size": 32000}
OWN = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"


def local(config: dict[str, Any], *tensors: str, pair: str = "", **options: Any) -> dict[str, Any]:
    """The options for a head at /data/head with its config, and tensors of these names."""
    named = {name: Tensor("BF16", (1,), 2) for name in tensors}
    read = Checkpoint("/data/head", config, named or None)
    read = replace(read, pair=pair) if pair else read
    return {"drafter": "/data/head", "drafter_checkpoint": read, **options}


PARALLEL = "speculation.parallel_drafting"
CHOICES: dict[str, tuple[str, dict[str, Any], Expected]] = {
    # K
    "the recommended K": ("chat", {}, {
        "k": 5, "because k": "k-of-drafter",
        "values k": {"drafter": "P-EAGLE head for Chat", "source": "its card"}}),
    "the user's K": ("chat", {"k": 8}, {"k": 8, "because k": None, "errors": []}),
    "a K above training": ("chat", {"k": 9}, {
        "errors": ["k-above-trained"], "fix k-above-trained": "--k 8 or less",
        "message k-above-trained": "P-EAGLE head for Chat: K=9 exceeds the trained K of 8"}),
    "draftless methods take any K": ("chat+ngram", {"k": 40}, {"errors": []}),
    # vLLM
    "the catalogue's vLLM": ("chat", {}, {
        "runtime.vllm": "0.28.0", "because vllm": "catalogue-vllm",
        "values vllm": {"checked": "2026-07-01"}}),
    "the user's vLLM": ("chat", {"vllm": "0.28"}, {
        "runtime.vllm": "0.28.0", "because vllm": None}),
    "below the head's minimum": ("chat", {"vllm": "0.17.1"}, {
        "errors": ["vllm-below-minimum"],
        "message vllm-below-minimum": "P-EAGLE head for Chat needs vLLM 0.18.0 or later"}),
    "not below another head's": ("chat+eagle3", {"vllm": "0.17.1"}, {"errors": []}),
    "a version of the user's image": ("chat", {"vllm": "0.99.0", "image": OWN}, {
        "errors": [], "runtime.vllm": "0.99.0", "runtime.image": OWN}),
    "an old version of it": ("chat", {"vllm": "0.12.0", "image": OWN}, {
        "errors": ["vllm-below-minimum"]}),
    "a known problem": ("chat", {"vllm": "0.19.0"}, {"has": {"old-bug"}}),
    "a problem of other versions": ("chat", {}, {"lacks": {"old-bug"}}),
    "settings of a version": ("chat", {"vllm": "0.19.0"}, {"variable SM_VLLM_OLD_FLAG": "true"}),
    "settings of another version": ("chat", {}, {"variable SM_VLLM_OLD_FLAG": None}),
    # Region and image
    "the image of version and region": ("chat", {"region": "eu-west-1"}, {
        "because region": None, "runtime.image":
        "222222222222.dkr.ecr.eu-west-1.amazonaws.com/vllm:0.28.0-gpu-cu130"}),
    "the default region": ("chat", {}, {
        "because region": "default-region", "proof.source": "log"}),
    "a region without the version": ("chat", {"region": "ap-east-1"}, {
        "errors": ["image-not-in-region"], "fix image-not-in-region": "use --vllm 0.19.0"}),
    "the user's image": ("chat", {"image": OWN, "copies": 1}, {
        "runtime.image": OWN, "because image": None, "codes": ["gpus-idle", "image-by-tag"],
        "proof.source": "counters"}),
    "AWS's image, named": (
        "chat", {"image": "111111111111.dkr.ecr.us-east-1.amazonaws.com/vllm:0.28.0-gpu-cu130"},
        {"proof.source": "log"}),
    "an image of another region": (
        "chat", {"image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1"},
        {"errors": ["image-not-in-region"]}),
    "an image of Docker Hub": ("chat", {"image": "docker.io/me/mine:1"}, {
        "errors": ["image-not-in-ecr"]}),
    "a public image": ("chat", {"image": "public.ecr.aws/me/mine:1"}, {
        "errors": ["image-not-in-ecr"]}),
    "the AMI of a family that needs it": ("chat", {"instance_type": "ml.g6e.xlarge"}, {
        "runtime.ami": "the-ami", "because ami": "ami-for-driver"}),
    "the AMI of other families": ("chat", {"instance_type": "ml.g7e.2xlarge"}, {
        "runtime.ami": None, "because ami": "ami-not-covered",
        "values ami": {"family": "g7e"}}),
    # Names
    "a short name": ("chat", {"name": "a"}, {"name": "a"}),
    "the longest name": ("chat", {"name": "a" * 63}, {"name": "a" * 63}),
    "a name with hyphens": ("chat", {"name": "A--b-9"}, {"name": "A--b-9"}),
    # Context and load
    "the catalogue's context": ("chat", {}, {
        "max_model_len": 4096, "because max_model_len": "context-of-target"}),
    "the user's context": ("chat", {"max_model_len": 1000}, {"because max_model_len": None}),
    "a context above the target's": ("chat", {"max_model_len": 8193}, {
        "errors": ["context-above-target"], "message context-above-target": "8,193 tokens"}),
    "a context above the drafter's": ("chat", {"max_model_len": 4097}, {
        "errors": [], "has": {"context-above-drafter"}}),
    "the default load": ("chat", {}, {
        "concurrency": 8, "because concurrency": "default-concurrency"}),
    "the user's load": ("chat", {"concurrency": 32}, {
        "argument max-num-seqs": "32", "because concurrency": None}),
    "the context of a batch": (
        "chat", {"requests": 100, "prompt_tokens": 4000, "output_tokens": 200}, {
            "max_model_len": 4200, "because max_model_len": "context-of-requests",
            "values max_model_len": {"rounded": False}}),
    "requests that just fit the target's": ("chat", {"prompt_tokens": 4000, "output_tokens": 96}, {
        "max_model_len": 4096, "because max_model_len": "context-of-target"}),
    "requests of the longest context": ("chat", {"prompt_tokens": 4000, "output_tokens": 97}, {
        "max_model_len": 8192, "because max_model_len": "context-at-maximum"}),
    "requests in a short context": ("chat", {"max_model_len": 1000}, {
        "prompt_tokens": 744, "output_tokens": 256}),
    "answers in a short context": ("chat", {"max_model_len": 300, "output_tokens": 200}, {
        "prompt_tokens": 100, "output_tokens": 200}),
    "the user's requests": ("chat", {"prompt_tokens": 5, "output_tokens": 5}, {
        "because workload": None}),
    # The drafter
    "the default drafter": ("chat", {}, {
        "pair": "acme/chat+acme/chat-p-eagle", "drafter.id": "acme/chat-p-eagle",
        "because drafter": "drafter-of-target", "values drafter": {"target": "acme/chat"}}),
    "a named drafter": ("chat+eagle3", {}, {
        "pair": "acme/chat+acme/chat-eagle3", "because drafter": None,
        "name": "peagle-chat-eagle3", "speculation.acceptance_floor": None}),
    "a drafter by its weights": ("acme/chat+acme/CHAT-EAGLE3", {}, {
        "pair": "acme/chat+acme/chat-eagle3", "because drafter": None}),
    "no speculation": ("chat", {"speculation": False}, {
        "pair": "acme/chat", "drafter": None, "speculation": None, "fit.drafter_gib": 0,
        "argument speculative-config": None, "argument no-enable-prefix-caching": None}),
    "a draftless method": ("chat+ngram", {}, {
        "pair": "acme/chat+ngram", "drafter.weights": None, "argument speculative-config":
        '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}'}),
    "the fallback of a head that is not public": ("secret", {}, {
        "pair": "acme/secret+acme/secret-eagle3", "name": "peagle-secret",
        "message head-not-public": "P-EAGLE head for Secret: not public",
        "fix head-not-public": "--drafter"}),
    "also where it is named": ("secret+p-eagle", {}, {
        "pair": "acme/secret+acme/secret-eagle3", "has": {"head-not-public"}}),
    "the floor of K=1": ("chat", {"k": 1}, {"speculation.acceptance_floor": 1.1}),
    "the floor of K=2": ("chat", {"k": 2}, {"speculation.acceptance_floor": 1.2}),
    "the floor of K=8": ("chat", {"k": 8}, {"speculation.acceptance_floor": 1.5}),
    # The user's own head
    "of the kind that the pair names": ("chat+eagle3", {"drafter": "s3://my-bucket/head/"}, {
        PARALLEL: False, "k": 3, "name": "peagle-chat-own", "has": {"head-not-read"}}),
    "with an unknown trained K": ("chat", {"drafter": "s3://my-bucket/head", "k": 50}, {
        "errors": [], "has": {"k-above-trained"}}),
    "pinned on the Hub": ("chat", {"drafter": "me/head@feed123"}, {
        "drafter.weights.location": "me/head", "drafter.weights.revision": "feed123",
        "lacks": {"revision-not-pinned"}}),
    "not pinned on the Hub": ("chat", {"drafter": "me/head"}, {"has": {"revision-not-pinned"}}),
    "a pinned head of the catalogue": ("chat", {"drafter": "acme/chat-p-eagle@cafe"}, {
        "drafter.name": "p-eagle", "drafter.weights.revision": "cafe"}),
    "whose K stays limited": ("chat", {"drafter": "acme/chat-p-eagle@cafe", "k": 9}, {
        "errors": ["k-above-trained"]}),
    "of another target": ("chat", {"drafter": "acme/secret-eagle3"}, {
        "errors": ["head-not-for-target"], "message head-not-for-target": "acme/secret",
        "fix head-not-for-target": "use the target secret, or a drafter of chat: p-eagle, eagle3"}),
    "read as P-EAGLE": ("chat", local(HEAD), {
        PARALLEL: True, "errors": [], "lacks": {"head-not-read"}, "because k": "k-without-card"}),
    "read as EAGLE-3": ("chat", local(EAGLE), {
        PARALLEL: False, "k": 3, "because k": "k-without-card",
        "values k": {"source": "EAGLE-3 head for Chat (its card)"}}),
    "with a short context": ("chat", local(HEAD | {"max_position_embeddings": 2048}), {
        "has": {"context-above-drafter"}}),
    "a copy of the catalogue's": ("chat", local(HEAD, pair="acme/chat+acme/chat-p-eagle"), {
        "drafter.licence": "apache-2.0", "because k": "k-of-own-head"}),
    "a copy of another": ("chat", local(HEAD, pair="acme/other+acme/chat-p-eagle"), {
        "because k": "k-without-card"}),
    "without its mask": ("chat", local(HEAD, "fc.weight"), {"has": {"head-without-mask"}}),
    "with its mask": ("chat", local(HEAD, "fc.weight", "model.mask_hidden"), {
        "lacks": {"head-without-mask"}}),
    "EAGLE-3 needs no mask": ("chat", local(EAGLE, "fc.weight"), {"lacks": {"head-without-mask"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str) -> None:
    pair, options, expected = CHOICES[name]
    check_plan(plan(pair, **options), expected)


@pytest.mark.parametrize("location", ["s3://my-bucket/head", "me/head", "/data/head"])
def test_the_users_head_replaces_a_head_that_is_not_public(location: str) -> None:
    check_plan(plan("secret", drafter=location), {
        PARALLEL: True, "k": 5, "speculation.acceptance_floor": 1.5, "name": "peagle-secret",
        "pair": f"acme/secret+{location}", "lacks": {"head-not-public"}})  # fmt: skip
    assert codes(plan("secret", drafter=location, k=9), "error") == ["k-above-trained"]


def test_only_a_copy_of_the_catalogues_head_has_its_floor() -> None:
    """Another head is proved where it pays."""
    sources = []
    for pair in ("acme/chat+acme/chat-p-eagle", ""):
        speculation = plan("chat", **local(HEAD, pair=pair)).speculation
        assert speculation
        sources.append(speculation.acceptance_floor_source)
    assert sources[0] == "catalogue" != sources[1]


WRONG_HEADS: list[tuple[dict[str, Any], str]] = [
    (HEAD | {"hidden_size": 2048}, "hidden-size-mismatch"),
    *((config, "head-not-a-drafter") for config in ({}, MODEL, {"architectures": "Eagle3"})),
]


@pytest.mark.parametrize(("config", "code"), WRONG_HEADS)
def test_a_head_that_does_not_fit_its_target_is_an_error(config: dict[str, Any], code: str) -> None:
    assert codes(plan(**local(config)), "error") == [code]


def test_the_drafter_option_selects_a_drafter() -> None:
    named = plan("chat+eagle3")
    for drafter in ("eagle3", "acme/chat-eagle3"):
        assert decide_alike(plan("chat", drafter=drafter), named)


def test_a_version_without_an_image_ends_a_plan_with_the_finding_of_check() -> None:
    (finding,) = check(make_case(CATALOG, CHAT, P_EAGLE, vllm="0.27.0"), only={"runtime-unknown"})
    with raises_code("runtime-unknown") as refused:
        plan(vllm="0.27.0")
    assert (refused.value.message, refused.value.fix) == (finding.message, finding.fix)
    assert refused.value.exit_code == 2


def test_changes_of_the_target() -> None:
    def changed(**fields: Any) -> Any:
        return with_target(CHAT.model_copy(update=fields))

    newer = plan(catalog=changed(min_vllm="0.30.0"), speculation=False)
    assert "Chat needs vLLM 0.30.0 or later" in newer.findings[0].message
    always = P_EAGLE.problems[0].model_copy(update={"vllm": None, "level": "error"})
    broken = P_EAGLE.model_copy(update={"problems": (always,)})
    assert codes(plan(catalog=changed(drafters=(broken,))), "error") == ["old-bug"]
    gated = changed(gated=True)
    assert "target-is-gated" in codes(plan(catalog=gated), "warning")
    assert "target-is-gated" not in codes(plan(catalog=gated, model_source="s3://b-b/x"))
    dotted = plan("acme/chat", catalog=changed(short_name=f"chat-1.5-{'x' * 70}")).name
    assert (dotted[:16], len(dotted)) == ("peagle-chat-1-5-", 63)


def test_an_image_of_aws_with_a_known_digest_is_planned_by_it() -> None:
    digest = f"sha256:{'d' * 64}"
    table = CATALOG.runtimes
    runtimes = [runtime.model_copy(update={"digest": digest}) for runtime in table.runtimes]
    exact = table.model_copy(update={"runtimes": tuple(runtimes)})
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


def test_every_decision_has_one_reason_and_no_option_has_any() -> None:
    whats = [reason.what for reason in plan().reasons]
    assert len(whats) == len(set(whats))
    chosen = plan(
        "chat+p-eagle", name="mine", region="us-east-1", instance_type="ml.g7e.2xlarge",
        instance_count=1, k=5, max_model_len=4096, concurrency=8, prompt_tokens=2048,
        output_tokens=256, vllm="0.28.0", image=OWN,
    )  # fmt: skip
    assert [reason.what for reason in chosen.reasons] == [
        "tensor_parallel_size", "speculation", "ami",
        "--no-enable-prefix-caching", "PROCESS_AUTO_RECOVERY", "download_timeout_seconds",
        "startup_timeout_seconds",
    ]  # fmt: skip


def test_a_drafter_of_unknown_speed_is_not_planned_where_it_costs_more() -> None:
    load: dict[str, Any] = {
        "instance_type": "ml.g7e.2xlarge", "concurrency": 500, "prompt_tokens": 4000,
        "output_tokens": 96,
    }  # fmt: skip
    check_plan(plan(**load), {
        "drafter": None, "instance_count": 1, "because speculation": "drafter-unknown",
        "values speculation": {"drafter": "p-eagle"}})  # fmt: skip
    check_plan(plan("chat+p-eagle", **load), {"drafter.name": "p-eagle", "instance_count": 2})
