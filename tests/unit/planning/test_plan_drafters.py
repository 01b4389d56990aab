"""The drafter of a plan, and its findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peagle.checkpoints import Checkpoint, Tensor
from peagle.errors import CheckpointError, NotFound, UserError
from tests.support import decide_alike, raises_code
from tests.unit.planning.small_catalog import because, codes, finding_of, plan

HEAD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 1024,
    "vocab_size": 32000,
    "draft_vocab_size": 32000,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 4096,
    "max_position_embeddings": 8192,
    "ptd_token_id": 31999,
}


def read(config: dict[str, Any], *tensors: str) -> Checkpoint:
    """A head at /data/head with its config, and tensors of these names."""
    named = {name: Tensor("BF16", (1,), 2, "model.safetensors") for name in tensors}
    return Checkpoint("/data/head", config, named or None)


def test_a_bare_target_gets_its_default_drafter_and_a_reason() -> None:
    made = plan("chat")
    assert made.pair == "acme/chat+acme/chat-p-eagle"
    assert made.drafter is not None
    assert made.drafter.id == "acme/chat-p-eagle"
    assert because(made, "drafter") == "the catalogue's default for acme/chat"


@pytest.mark.parametrize("pair", ["chat+eagle3", "acme/chat+acme/CHAT-EAGLE3"])
def test_a_named_drafter_needs_no_reason(pair: str) -> None:
    made = plan(pair)
    assert made.pair == "acme/chat+acme/chat-eagle3"
    assert because(made, "drafter") is None
    assert made.name == "peagle-chat-eagle3"


def test_the_drafter_option_selects_a_drafter() -> None:
    assert decide_alike(plan("chat", drafter="eagle3"), plan("chat+eagle3"))
    assert decide_alike(plan("chat", drafter="acme/chat-eagle3"), plan("chat+eagle3"))


def test_no_speculation_removes_the_drafter() -> None:
    made = plan("chat", speculation=False)
    assert (made.pair, made.drafter, made.speculation) == ("acme/chat", None, None)
    assert "--speculative-config" not in made.engine_arguments
    assert "--no-enable-prefix-caching" not in made.engine_arguments
    assert made.fit.drafter_gib == 0


def test_a_draftless_method_has_a_drafter_without_weights() -> None:
    made = plan("chat+ngram")
    assert made.pair == "acme/chat+ngram"
    assert made.drafter is not None
    assert made.drafter.weights is None
    config = made.engine_arguments[-1]
    assert config == '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}'


@pytest.mark.parametrize(
    ("options", "flag"), [({"drafter": "eagle3"}, "--drafter"), ({"k": 3}, "--k")]
)
def test_no_speculation_contradicts_a_drafter_and_k(options: dict[str, Any], flag: str) -> None:
    with raises_code("conflicting-options", UserError) as refused:
        plan("chat", speculation=False, **options)
    assert flag in refused.value.message
    assert "--no-speculation" in refused.value.message


def test_two_drafters_contradict_each_other() -> None:
    with raises_code("conflicting-options", UserError) as refused:
        plan("chat+eagle3", drafter="ngram")
    assert "chat+eagle3 and --drafter ngram" in refused.value.message


def test_an_unknown_drafter_suggests_the_nearest() -> None:
    with raises_code("unknown-drafter", NotFound) as refused:
        plan("chat", drafter="eagle4")
    assert refused.value.fix.startswith("did you mean eagle3")
    assert refused.value.exit_code == 2


def test_a_head_that_is_not_public_is_replaced_by_its_fallback() -> None:
    for pair in ("secret", "secret+p-eagle"):
        made = plan(pair)
        assert made.pair == "acme/secret+acme/secret-eagle3"
        assert made.name == "peagle-secret"
        finding = finding_of(made, "head-not-public")
        assert finding.level == "warning"
        assert finding.message.startswith("P-EAGLE head for Secret: not public")
        assert "--drafter" in finding.fix


@pytest.mark.thorough
@pytest.mark.parametrize("own", ["s3://my-bucket/head", "me/head", "/data/head"])
def test_the_users_head_replaces_a_head_that_is_not_public(own: str) -> None:
    made = plan("secret", drafter=own)
    assert made.speculation is not None
    assert made.speculation.parallel_drafting
    assert made.speculation.k == 5
    assert made.speculation.acceptance_floor == 1.5
    assert made.name == "peagle-secret"
    assert made.pair == f"acme/secret+{own}"
    assert "head-not-public" not in codes(made)
    assert codes(plan("secret", drafter=own, k=9), "error") == ["k-above-trained"]


def test_the_users_head_has_the_kind_that_the_pair_names() -> None:
    made = plan("chat+eagle3", drafter="s3://my-bucket/head/")
    assert made.speculation is not None
    assert not made.speculation.parallel_drafting
    assert made.speculation.k == 3
    assert made.name == "peagle-chat-own"
    assert "head-not-read" in codes(made)


def test_the_trained_k_of_the_users_head_is_unknown() -> None:
    made = plan("chat", drafter="s3://my-bucket/head", k=50)
    assert codes(made, "error") == []
    assert "k-training-unknown" in codes(made)


def test_the_users_head_from_the_hub_can_be_pinned() -> None:
    made = plan("chat", drafter="me/head@feed123")
    assert made.drafter is not None
    assert made.drafter.weights is not None
    assert made.drafter.weights.location == "me/head"
    assert made.drafter.weights.revision == "feed123"
    assert '"model":"me/head","revision":"feed123"' in made.engine_arguments[-1]
    assert "revision-not-pinned" not in codes(made)
    assert "revision-not-pinned" in codes(plan("chat", drafter="me/head"))


@pytest.mark.thorough
def test_a_head_of_another_target_is_an_error() -> None:
    made = plan("chat", drafter="acme/secret-eagle3")
    finding = finding_of(made, "error")
    assert finding.code == "head-not-for-target"
    assert "acme/secret" in finding.message
    assert finding.fix == "use the target secret, or a drafter of chat: p-eagle, eagle3, ngram"


@pytest.mark.thorough
def test_the_kind_of_the_head_is_read_from_its_config() -> None:
    made = plan("chat", drafter="/data/head", drafter_checkpoint=read(HEAD))
    assert made.speculation is not None
    assert made.speculation.parallel_drafting
    assert codes(made, "error") == []
    assert "head-not-read" not in codes(made)
    eagle = {key: value for key, value in HEAD.items() if key != "ptd_token_id"}
    made = plan("chat", drafter="/data/head", drafter_checkpoint=read(eagle))
    assert made.speculation is not None
    assert not made.speculation.parallel_drafting
    assert made.speculation.k == 3


def test_the_longest_context_of_the_head_is_read_from_its_config() -> None:
    short = HEAD | {"max_position_embeddings": 2048}
    made = plan("chat", drafter="/data/head", drafter_checkpoint=read(short))
    assert "context-above-drafter" in codes(made, "warning")


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"hidden_size": 2048}, "hidden-size-mismatch", "hidden states of size 2,048"),
        ({"target_hidden_size": 512}, "hidden-size-mismatch", "hidden states of size 512"),
        ({"vocab_size": 50000}, "vocabulary-mismatch", "vocabulary has 50,000"),
        ({"draft_vocab_size": 64000}, "draft-vocabulary", "drafts 64,000 tokens"),
        (
            {"eagle_aux_hidden_state_layer_ids": [2, 8, 40]},
            "aux-layers-outside",
            "layers 2, 8, 40",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 2, 8]}},
            "aux-layers-collide",
            "these are not distinct",
        ),
    ],
)
def test_a_head_that_does_not_fit_its_target_is_an_error(
    change: dict[str, Any], code: str, message: str
) -> None:
    made = plan("chat", drafter="/data/head", drafter_checkpoint=read(HEAD | change))
    finding = finding_of(made, "error")
    assert finding.code == code
    assert message in finding.message


MODEL = {"architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "vocab_size": 32000}


@pytest.mark.parametrize(
    "config", [{}, MODEL, {"architectures": "Eagle3"}, {"architectures": ["BertModel"]}]
)
def test_weights_that_are_no_draft_head_are_an_error(config: dict[str, Any]) -> None:
    made = plan("chat", drafter="/data/head", drafter_checkpoint=read(config))
    finding = finding_of(made, "error")
    assert finding.code == "head-not-a-drafter"
    assert "/data/head is not a draft head" in finding.message


@pytest.mark.parametrize(
    "sign",
    [
        {"architectures": ["LlamaForCausalLMEagle3"]},
        {"architectures": ["Eagle3LlamaForCausalLM"]},
        {"architectures": ["PEagleSpeculator"]},
        {"speculators_model_type": "eagle3"},
        {"eagle_config": {"use_aux_hidden_state": True}},
        {"eagle_aux_hidden_state_layer_ids": [2, 8, 13]},
        {"pard_token": 5},
    ],
)
def test_every_key_of_a_draft_head_is_recognized(sign: dict[str, Any]) -> None:
    made = plan("chat", drafter="/data/head", drafter_checkpoint=read(MODEL | sign))
    assert "head-not-a-drafter" not in codes(made)


@pytest.mark.thorough
def test_a_parallel_head_without_its_mask_is_an_error() -> None:
    def found(config: dict[str, Any], *tensors: str) -> list[str]:
        made = plan("chat", drafter="/data/head", drafter_checkpoint=read(config, *tensors))
        return codes(made, "error")

    eagle = {key: value for key, value in HEAD.items() if key != "ptd_token_id"}
    assert "head-without-mask" in found(HEAD, "fc.weight")
    assert "head-without-mask" not in found(HEAD, "fc.weight", "model.mask_hidden")
    assert "head-without-mask" not in found(eagle, "fc.weight")


def test_the_k_of_the_users_head_has_its_origin() -> None:
    made = plan("chat", drafter="/data/head", drafter_checkpoint=read(HEAD))
    assert because(made, "k") == (
        "the model card of your head is unknown; recommended for P-EAGLE head for Chat (its card)"
    )
    eagle = {key: value for key, value in HEAD.items() if key != "ptd_token_id"}
    made = plan("chat", drafter="/data/head", drafter_checkpoint=read(eagle))
    assert "EAGLE-3 head for Chat (its card)" in str(because(made, "k"))


def test_a_copy_of_the_catalogues_head_has_its_licence_and_model_card() -> None:
    head = replace(read(HEAD), pair=plan("chat").pair)
    made = plan("chat", drafter="/data/head", drafter_checkpoint=head)
    listed = plan("chat").drafter
    assert made.drafter is not None
    assert listed is not None
    assert made.drafter.licence == listed.licence
    assert because(made, "k") == "recommended for P-EAGLE head for Chat (its card)"
    other = replace(head, pair="acme/other+acme/chat-p-eagle")
    made = plan("chat", drafter="/data/head", drafter_checkpoint=other)
    assert "the model card of your head is unknown" in str(because(made, "k"))


def test_a_speculators_config_is_read() -> None:
    inner = {key: HEAD[key] for key in HEAD if key not in ("ptd_token_id", "draft_vocab_size")}
    config = {
        "speculators_model_type": "peagle",
        "speculators_config": {"verifier": {"name_or_path": "acme/chat"}},
        "transformer_layer_config": inner,
        "draft_vocab_size": 16000,
        "mask_token_id": 5,
    }
    made = plan("chat", drafter="/data/head", drafter_checkpoint=read(config))
    assert codes(made, "error") == []
    assert made.speculation is not None
    assert made.speculation.parallel_drafting
    wrong = config | {"transformer_layer_config": inner | {"hidden_size": 4096}}
    assert codes(plan("chat", drafter="/data/head", drafter_checkpoint=read(wrong)), "error") == [
        "hidden-size-mismatch"
    ]


@pytest.mark.parametrize("value", ["large", 0, -1, 2.5, True])
def test_an_invalid_config_is_refused(value: object) -> None:
    with raises_code("config-damaged", CheckpointError) as refused:
        plan("chat", drafter="/data/head", drafter_checkpoint=read(HEAD | {"hidden_size": value}))
    assert f"hidden_size is {value!r}" in refused.value.message


def test_a_head_of_the_catalogue_can_be_pinned() -> None:
    made = plan("chat", drafter="acme/chat-p-eagle@cafe")
    assert made.drafter is not None
    assert made.drafter.name == "p-eagle"
    assert '"revision":"cafe"' in made.engine_arguments[-1]
    assert codes(plan("chat", drafter="acme/chat-p-eagle@cafe", k=9), "error") == [
        "k-above-trained"
    ]


def test_weights_cannot_draft_as_a_draftless_method() -> None:
    with raises_code("drafts-without-head", UserError) as refused:
        plan("chat+ngram", drafter="s3://bucket/head")
    assert "s3://bucket/head" in refused.value.message
    assert "EAGLE-3 or P-EAGLE" in refused.value.fix


def test_the_acceptance_floor_is_lower_for_a_smaller_k() -> None:
    def floor(k: int) -> float | None:
        made = plan("chat", k=k)
        assert made.speculation is not None
        return made.speculation.acceptance_floor

    assert [floor(k) for k in (1, 2, 5, 8)] == [1.1, 1.2, 1.5, 1.5]
    eagle = plan("chat+eagle3").speculation
    assert eagle is not None
    assert eagle.acceptance_floor is None


def test_a_drafter_of_unknown_speed_is_not_planned_where_it_costs_more() -> None:
    load: dict[str, Any] = {
        "instance_type": "ml.g7e.2xlarge",
        "concurrency": 500,
        "prompt_tokens": 4000,
        "output_tokens": 96,
    }
    made, named = plan(**load), plan("chat+p-eagle", **load)

    assert (made.drafter, made.instance_count) == (None, 1)
    assert "the speed with p-eagle is unknown here, and it costs $8.40" in str(
        because(made, "speculation")
    )
    assert named.drafter is not None
    assert named.instance_count == 2
