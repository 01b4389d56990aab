"""Whether a head belongs to its target: which names, sizes, tokenizers and tokens decide."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.checkpoints import Checkpoint
from peagle.checkpoints.models import Tokenizer
from peagle.checks import check
from peagle.checks.rules.head_layout import required
from tests.unit.checks.cases import catalog_case, speculators_case, tiny_case, with_options
from tests.unit.checks.corpus_rest import tokenizers
from tests.unit.checks.corpus_versions import head_at
from tests.unit.checks.damage import Damage, filled

LLAMA, OTHER_CLASS = ["LlamaForCausalLM"], ["GptOssForCausalLM"]
VERIFIER = "speculators_config.verifier"


@pytest.mark.parametrize(("verifier", "is_own", "level"), [
    ({"name_or_path": "peagle/tiny", "architectures": OTHER_CLASS}, False, ""),
    ({"name_or_path": "/models/Tiny/", "architectures": OTHER_CLASS}, False, ""),
    ({"name_or_path": "someone/tiny-FP8", "architectures": OTHER_CLASS}, False, "warning"),
    ({"name_or_path": "tin", "architectures": OTHER_CLASS}, False, "warning"),
    ({"name_or_path": "meta/llama-8b", "architectures": LLAMA}, False, "error"),
    ({"name_or_path": "meta/llama-8b", "architectures": LLAMA}, True, "warning"),
    ({"name_or_path": "meta/llama-8b", "architectures": OTHER_CLASS}, True, "error"),
    ({"name_or_path": "/models/llama-8b", "architectures": LLAMA}, False, ""),
    ({"name_or_path": "/models/llama-8b", "architectures": OTHER_CLASS}, False, "error"),
    ({"name_or_path": "llama-8b", "architectures": OTHER_CLASS}, False, "error"),
    ({"name_or_path": "", "architectures": OTHER_CLASS}, False, ""),
    ({"name_or_path": 3, "architectures": OTHER_CLASS}, False, ""),
    ({"architectures": OTHER_CLASS}, False, ""),
    ("meta/llama-8b", False, ""),
    (None, False, ""),
])  # fmt: skip
def test_the_target_that_a_head_was_trained_for_is_named(
    tmp_path: Path, verifier: object, is_own: bool, level: str
) -> None:
    case = speculators_case(tmp_path, "peagle", Damage(set_keys={VERIFIER: verifier}))
    case = replace(case, own_target=is_own)
    report = check(case, only={"speculators-verifier"})
    assert [finding.level for finding in report] == ([level] if level else [])


@pytest.mark.parametrize(("pair", "location", "is_own", "level"), [
    ("gpt-oss-20b", "amazon/GPT-OSS-20B-P-EAGLE", False, ""),
    ("gpt-oss-20b", "AMAZON/gpt-oss-20b-p-eagle", False, ""),
    ("gpt-oss-20b", "amazon/GPT-OSS-120B-P-EAGLE", False, "error"),
    ("gpt-oss-20b", "amazon/gpt-oss-120b-p-eagle@main", False, "error"),
    ("gpt-oss-20b", "amazon/GPT-OSS-120B-P-EAGLE", True, "error"),
    ("gpt-oss-20b", "someone/else", False, ""),
    ("gpt-oss-20b", "s3://bucket/GPT-OSS-120B-P-EAGLE", False, ""),
])  # fmt: skip
def test_a_head_that_is_listed_under_another_target_is_an_error(
    pair: str, location: str, is_own: bool, level: str
) -> None:
    case = replace(head_at(pair, location), own_target=is_own)
    report = check(case, only={"head-not-for-target"})
    assert [finding.level for finding in report] == ([level] if level else [])


@pytest.mark.parametrize(("is_own", "level"), [(True, "warning"), (False, "error")])
def test_a_copy_of_the_target_that_the_head_is_for_gets_a_warning(is_own: bool, level: str) -> None:
    case = catalog_case("gpt-oss-20b")
    copy = case.target.model_copy(update={"id": "me/my-gpt", "drafters": ()})
    (finding,) = check(replace(case, target=copy, own_target=is_own), only={"head-not-for-target"})
    assert finding.level == level


@pytest.mark.parametrize(("pair", "is_reported"), [
    ("gemma-4-31b+p-eagle", True), ("gemma-4-31b+eagle3", False), ("gemma-4-31b+ngram", False),
])  # fmt: skip
def test_only_a_head_without_public_weights_is_not_public(pair: str, is_reported: bool) -> None:
    report = check(catalog_case(pair), only={"head-not-public"})
    assert bool(report) is is_reported


@pytest.mark.parametrize(("target", "head", "level"), [
    ((1024, {}), (1024, {}), ""),
    ((1024, {}), (1023, {}), "error"),
    ((None, {"1": "<s>"}), (None, {"1": "<s>"}), ""),
    ((None, {"1": "<s>"}), (None, {"1": "</s>"}), "warning"),
    ((1024, {"1": "<s>"}), (None, {"1": "</s>"}), "warning"),
    ((1024, {"1": "<s>"}), (1024, {"1": "</s>"}), "warning"),
])  # fmt: skip
def test_a_tokenizer_of_another_size_is_an_error_and_other_tokens_a_warning(
    tmp_path: Path, target: tuple[Any, Any], head: tuple[Any, Any], level: str
) -> None:
    case = tokenizers(tiny_case(tmp_path), Tokenizer(*target), Tokenizer(*head))
    report = check(case, only={"tokenizer-differs"})
    assert [finding.level for finding in report] == ([level] if level else [])


@pytest.mark.parametrize(("tokens", "words"), [
    ({}, ""),
    ({"eos": (1,)}, ""),
    ({"eos": (0, 7)}, "EOS token"),
    ({"pad": (7,)}, "padding token"),
    ({"eos": (7,), "unk": (7,)}, "EOS and unknown token"),
    ({"bos": (7,)}, ""),
])  # fmt: skip
def test_a_mask_that_is_a_token_of_text_gets_a_warning(
    tmp_path: Path, tokens: dict[str, tuple[int, ...]], words: str
) -> None:
    case = tiny_case(tmp_path, Damage(set_keys={"ptd_token_id": 7}))
    target = case.target.model_copy(update={"special_tokens": tokens})
    report = check(replace(case, target=target), only={"mask-token-used"})
    assert len(report) == bool(words)
    assert all(words in finding.message for finding in report)


@pytest.mark.parametrize(("damage", "code", "counted"), [
    (Damage(drop=("norm.weight",)), "tensors-missing", 1),
    (Damage(drop=("layers.1.mlp.up_proj.weight", "norm.weight")), "tensors-missing", 2),
    (Damage(drop=tuple(f"layers.1.self_attn.{name}_proj.weight" for name in "qkvo")),
     "tensors-missing", 3),
    (Damage(add={"lm_head.bias": filled("BF16", (4,))}), "tensors-unknown", 1),
    (Damage(add={f"more.{n}": filled("BF16", (4,)) for n in range(4)}), "tensors-unknown", 3),
    (Damage(add={"layers.0.self_attn.rotary_emb.inv_freq": filled("F32", (4,))}), "", 0),
    (Damage(), "", 0),
])  # fmt: skip
def test_tensors_that_lack_or_are_too_many_are_named_up_to_three(
    tmp_path: Path, damage: Damage, code: str, counted: int
) -> None:
    report = check(tiny_case(tmp_path, damage), only={"tensors-missing", "tensors-unknown"})
    assert [finding.code for finding in report] == ([code] if code else [])
    for finding in report:
        listed, _, others = finding.message.partition(", and ")
        assert listed.count(",") + 1 - ("which" in listed) == counted
        assert others.startswith("1 more") is (counted == 3)


def test_a_head_has_the_tensors_of_its_config(tmp_path: Path) -> None:
    head = tiny_case(tmp_path).head
    assert head is not None
    config = head.config
    shapes = required(config)
    assert shapes is not None
    assert shapes["fc.weight"] == (256, 3 * 256)
    assert "input_norm.weight" not in shapes
    assert "layers.0.hidden_norm.weight" in shapes
    assert "layers.1.hidden_norm.weight" not in shapes
    assert shapes["layers.0.self_attn.q_proj.weight"][1] == 2 * 256
    assert shapes["layers.1.self_attn.q_proj.weight"][1] == 256
    shown: list[tuple[dict[str, Any], set[str]]] = [
        ({"uses_auxiliary": False}, set()),
        ({"norm_before_fc": True}, {"fc.weight", "input_norm.weight"}),
        ({"fc_norm": True}, {"fc.weight", *(f"fc_norm.{n}.weight" for n in range(3))}),
    ]
    for changes, present in shown:
        changed = required(config._replace(**changes))
        assert changed is not None
        assert {name for name in changed if name.startswith(("fc", "input_norm"))} == present
    unknown: list[dict[str, Any]] = [
        {"quantized": True}, {"model_type": "mistral"}, {"hidden_size": None},
        {"intermediate_size": None}, {"query_heads": None},
    ]  # fmt: skip
    for changes in unknown:
        assert required(config._replace(**changes)) is None


@pytest.mark.parametrize(("damage", "is_reported"), [
    (Damage(), False),
    (Damage(retype={"norm.weight": "F32"}), False),
    (Damage(retype={"norm.weight": "I8"}), True),
    (Damage(retype={"norm.weight": "F8_E4M3"}), True),
    (Damage(set_keys={"quantization_config": {"quant_method": "fp8"}}), True),
    (Damage(set_keys={"quantization_config": {"quant_method": "fp8"}},
            add={"fc.weight_scale": filled("F32", (1,))}), False),
])  # fmt: skip
def test_eight_bit_values_need_a_quantization_and_its_scales(
    tmp_path: Path, damage: Damage, is_reported: bool
) -> None:
    assert bool(check(tiny_case(tmp_path, damage), only={"tensor-dtype"})) is is_reported


@pytest.mark.parametrize(("others", "tensors", "level"), [
    ((), None, "warning"), (("model.bin",), None, "error"), ((), {}, ""),
])  # fmt: skip
def test_files_other_than_safetensors_are_an_error(
    others: tuple[str, ...], tensors: dict[str, Any] | None, level: str
) -> None:
    head = Checkpoint("./head", {"architectures": LLAMA}, tensors, other_weights=others)
    case = with_options(catalog_case("tiny"), drafter_checkpoint=head)
    report = check(case, only={"weights-unread"})
    assert [finding.level for finding in report] == ([level] if level else [])
    assert all(finding.where == "drafter" for finding in report)
