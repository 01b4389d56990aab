"""Every rule finds its broken cases, with its own code; good pairs get no error."""

from pathlib import Path
from typing import Any

import pytest

from peagle.catalog.schema import Drafter, Target
from peagle.checks import Case, check, list_rules
from peagle.checks.rules.head_layout import required
from peagle.findings import Finding
from peagle_serve.heads import read_head
from tests.unit.checks.cases import (
    CATALOG,
    GEOMETRY,
    geometry_case,
    make_case,
    speculators_case,
    tiny_case,
)
from tests.unit.checks.corpus import Broken
from tests.unit.checks.corpus_heads import FULL, HEADS, SLIDING, layer_types
from tests.unit.checks.corpus_rest import REST

CORPUS = (*HEADS, *REST)
PAIRS = [(target, drafter) for target in CATALOG.targets.values() for drafter in target.drafters]
GEOMETRIES = [(folder.name, head) for folder in sorted(GEOMETRY.iterdir()) if folder.is_dir()
              for head in ("p-eagle", "eagle3")]  # fmt: skip


@pytest.mark.parametrize("broken", CORPUS, ids=lambda broken: broken.name)
def test_a_broken_pair_gets_its_finding_and_no_other_error(broken: Broken, tmp_path: Path) -> None:
    findings = check(broken.make(tmp_path))
    reported = {(finding.code, finding.level) for finding in findings}
    assert (broken.expected, broken.level) in reported, findings
    errors = [finding.code for finding in findings if finding.level == "error"]
    assert errors == ([broken.expected] if broken.level == "error" else []), findings


def test_every_rule_is_in_the_corpus() -> None:
    rules = {rule.code for rule in list_rules()}
    assert {broken.code for broken in CORPUS} == rules


@pytest.mark.parametrize(
    ("target", "drafter"), PAIRS, ids=[f"{t.short_name}+{d.name}" for t, d in PAIRS]
)
def test_no_pair_of_the_catalogue_gets_an_error(target: Target, drafter: Drafter) -> None:
    case = make_case(CATALOG, target, drafter, region="us-east-1")
    assert errors(case) == []
    assert errors(make_case(CATALOG, target, None, region="us-east-1")) == []


@pytest.mark.parametrize(("short", "head"), GEOMETRIES)
def test_no_real_geometry_gets_an_error(short: str, head: str, tmp_path: Path) -> None:
    assert errors(geometry_case(tmp_path, short, head)) == []


@pytest.mark.parametrize("vllm", [runtime.vllm for runtime in CATALOG.runtimes.runtimes])
@pytest.mark.parametrize("head", ["p-eagle", "eagle3"])
def test_the_tiny_pair_gets_no_finding(head: str, vllm: str, tmp_path: Path) -> None:
    assert check(tiny_case(tmp_path, head=head, pair=f"tiny+{head}", vllm=vllm)) == ()


@pytest.mark.parametrize("kind", ["peagle", "eagle3"])
def test_the_speculators_format_gets_no_finding(kind: str, tmp_path: Path) -> None:
    pair = {"peagle": "tiny", "eagle3": "tiny+eagle3"}[kind]
    assert check(speculators_case(tmp_path, kind, pair=pair)) == ()


def errors(case: Case) -> list[str]:
    return [finding.code for finding in check(case) if finding.level == "error"]


# Heads are read as vLLM 0.28.0 reads them, and fixes name the keys of the head's own format.
AUX = "eagle_aux_hidden_state_layer_ids"
INNER = "transformer_layer_config"


def finding_of(case: Case, code: str) -> Finding:
    return next(finding for finding in check(case) if finding.code == code)


def codes(case: Case) -> set[str]:
    return {finding.code for finding in check(case) if finding.level != "note"}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_qwen3_head_reads_as_many_layers_as_it_lists(count: int) -> None:
    config: dict[str, Any] = {
        "speculators_model_type": "eagle3",
        AUX: list(range(2, 2 + count)),
        INNER: {"model_type": "qwen3"},
    }
    assert read_head(config).built_for == count
    assert read_head({**config, INNER: {"model_type": "llama"}}).built_for == 3


@pytest.mark.parametrize(("model_type", "config", "expected"), [
    ("llama", {"attention_bias": True}, {"q_proj", "k_proj", "v_proj", "o_proj"}),
    ("llama", {"mlp_bias": True}, {"gate_proj", "up_proj", "down_proj"}),
    ("qwen3", {"attention_bias": True, "mlp_bias": True}, {"q_proj", "k_proj", "v_proj"}),
    ("qwen3", {}, set()),
])  # fmt: skip
def test_biases_are_those_of_the_class(
    model_type: str, config: dict[str, bool], expected: set[str]
) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
             "num_hidden_layers": 1, "vocab_size": 32}  # fmt: skip
    layer = {"model_type": model_type, **sizes, **config}
    shapes = required(read_head({"speculators_model_type": "eagle3", INNER: layer}))
    assert shapes is not None
    assert {name.split(".")[-2] for name in shapes if name.endswith(".bias")} == expected


@pytest.mark.parametrize(("kinds", "length", "expected"), [
    ([SLIDING] * 4, 4096, {"head-window"}),
    ([SLIDING] * 4, 2048, set()),
    ([FULL] * 4, 4096, set()),
    ([FULL, SLIDING, SLIDING, SLIDING], 2048, {"kv-group-rule"}),
])  # fmt: skip
def test_windows_of_a_real_head(
    kinds: list[str], length: int, expected: set[str], tmp_path: Path
) -> None:
    changes = {"layer_types": kinds, "sliding_window": 2048, "num_hidden_layers": len(kinds)}
    case = geometry_case(tmp_path, "qwen3-coder-30b", changes=changes, max_model_len=length)
    assert codes(case) - {"weights-unread", "long-context-head"} == expected


def test_one_group_lets_a_mixed_head_start(tmp_path: Path) -> None:
    damage = layer_types(FULL, *[SLIDING] * 3, window=4096)
    setting = {"disable-hybrid-kv-cache-manager": True}
    mixed = finding_of(tiny_case(tmp_path / "mixed", damage), "kv-group-rule")
    assert mixed.options == ("--set", "disable-hybrid-kv-cache-manager=true")
    assert codes(tiny_case(tmp_path / "one", damage, settings=setting)) == set()


@pytest.mark.parametrize("token", [151645, 151643])
def test_a_mask_token_of_the_targets_own_is_a_warning(token: int, tmp_path: Path) -> None:
    case = geometry_case(tmp_path, "qwen3-coder-30b", changes={"ptd_token_id": token})
    assert finding_of(case, "mask-token-used").level == "warning"
