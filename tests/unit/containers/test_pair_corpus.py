"""The container and the pairs that ``peagle check`` refuses: what it stops itself, before vLLM is
started, and what it leaves to vLLM; and no pair that is good is stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu.geometry import OWN_TENSORS
from peagle.catalog.schema import Drafter, Target
from peagle.checkpoints.heads import read_head
from peagle.checks import Case
from peagle.checks.head_layout import required
from peagle_serve.crash import parse_crash
from peagle_serve.heads import HeadConfig
from tests.engine import trials
from tests.unit.checks.cases import CATALOG, GEOMETRY, geometry_case, make_case, tiny_case
from tests.unit.checks.corpus import Broken
from tests.unit.checks.corpus_heads import HEADS
from tests.unit.checks.corpus_rest import REST
from tests.unit.checks.damage import Damage
from tests.unit.containers.broken_pairs import refusal
from tests.unit.containers.left_to_vllm import LEFT, LOUD, REFUSED

pytestmark = pytest.mark.thorough

CORPUS = {broken.name: broken for broken in (*HEADS, *REST)}
LOG_LINES: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "crashes" / "pairs.json").read_text(encoding="utf-8")
)
"""The last lines of vLLM 0.28.0's tracebacks for pairs of the corpus."""

CAUSES = {
    "a class of a training framework": "unknown-model",
    "another type of speculator": "unknown-model",
    "layers of a type without a speculators class": "unknown-model",
    "no speculators_config": "unknown-model",
    "a context above the target's": "context-too-long",
    "heads that three GPUs cannot divide": "tensor-parallel",
    "a pipeline": "wrong-value",
    "a step as small as the draft slots": "wrong-speculation",
    "no padding in parallel": "wrong-speculation",
    "a drafter on three GPUs": "wrong-speculation",
    "a removed key": "wrong-speculation",
    "a removed sampling method": "wrong-speculation",
    "synthetic acceptance on a CPU": "wrong-speculation",
    "an unknown tensor": "weights-and-config",
}
"""Pair that only vLLM refuses -> the cause that the container reports."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_pair_is_refused_before_vllm_starts(name: str, tmp_path: Path) -> None:
    reported = refusal(CORPUS[name].make(tmp_path))

    assert reported is not None
    assert REFUSED[name] in reported
    assert "\n" not in reported


@pytest.mark.parametrize("broken", [one for one in CORPUS.values() if one.name not in REFUSED],
                         ids=lambda broken: broken.name)  # fmt: skip
def test_every_pair_left_to_vllm_has_a_reason(broken: Broken, tmp_path: Path) -> None:
    assert refusal(broken.make(tmp_path)) is None
    assert broken.left or LEFT.get(broken.name) or LEFT.get(broken.code), "the reason is empty"


def test_every_reason_belongs_to_a_case() -> None:
    started = [broken for broken in CORPUS.values() if broken.name not in REFUSED]

    assert set(REFUSED) <= set(CORPUS)
    assert set(LEFT) <= {one.name for one in started} | {one.code for one in started}


@pytest.mark.parametrize("name", CAUSES)
def test_a_refusal_by_vllm_has_a_known_cause(name: str) -> None:
    crash = parse_crash([f"(EngineCore pid=8) {line}" for line in LOG_LINES[name]])

    assert LEFT.get(name, LEFT.get(CORPUS[name].code)) == LOUD
    assert crash.cause == CAUSES[name]
    assert crash.fix


@pytest.mark.parametrize("name", LOG_LINES)
def test_every_error_of_vllm_has_a_cause_and_a_fix(name: str) -> None:
    crash = parse_crash(LOG_LINES[name])

    assert crash.cause
    assert crash.fix


@pytest.mark.parametrize("name", trials.GOOD)
def test_a_working_pair_is_accepted(name: str, tmp_path: Path) -> None:
    case = trials.GOOD[name].make(tmp_path)

    assert refusal(case) is None


@pytest.mark.parametrize("head", ["p-eagle", "eagle3"])
@pytest.mark.parametrize("short", sorted(folder.name for folder in GEOMETRY.glob("*/")))
def test_no_pair_of_the_catalogue_is_refused(short: str, head: str, tmp_path: Path) -> None:
    assert refusal(geometry_case(tmp_path, short, head)) is None

    whole = with_weights(geometry_case(tmp_path / "again", short, head), OWN_TENSORS[short, head])
    assert refusal(whole) is None


@pytest.mark.parametrize(
    ("target", "drafter"),
    [(target, drafter) for target in CATALOG.targets.values() for drafter in target.drafters],
    ids=lambda one: getattr(one, "name", getattr(one, "short_name", "")),
)
def test_no_pair_of_the_hub_is_refused(target: Target, drafter: Drafter) -> None:
    assert refusal(make_case(CATALOG, target, drafter)) is None


def test_a_target_may_have_added_tokens(tmp_path: Path) -> None:
    assert refusal(tiny_case(tmp_path, target=Damage(set_keys={"vocab_size": 1032}))) is None


def test_a_head_may_name_the_class_of_a_plain_model(tmp_path: Path) -> None:
    plain = Damage(
        set_keys={"architectures": ["LlamaForCausalLM"]},
        drop_keys=("eagle_config", "draft_vocab_size"),
    )

    assert refusal(tiny_case(tmp_path, plain, head="eagle3", pair="tiny+eagle3")) is None


def with_weights(case: Case, own: tuple[str, ...]) -> Case:
    """The case with zeros as weights in both folders, the head's as vLLM expects them."""
    assert case.drafter_checkpoint is not None
    assert case.target_checkpoint is not None
    head = read_head(case.drafter_checkpoint.config)
    write(Path(case.drafter_checkpoint.location), tensors(head, own))
    write(Path(case.target_checkpoint.location), {"model.norm.weight": (8,)})
    # The target's weights only have to exist.
    return replace(case, target_checkpoint=replace(case.target_checkpoint, tensors={}))


def tensors(head: HeadConfig, own: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of the head's tensors, by name."""
    shapes = dict(required(head) or {})
    hidden, drafted = head.hidden_size or 0, head.draft_vocab_size or head.vocab_size or 0
    if "embed_tokens" in own:
        shapes["embed_tokens.weight"] = (head.vocab_size or 0, hidden)
    if "lm_head" in own:
        shapes["lm_head.weight"] = (drafted, hidden)
    if drafted < (head.vocab_size or 0):
        shapes |= {"d2t": (drafted,), "t2d": (head.vocab_size or 0,)}
    if head.parallel_drafting:
        shapes["mask_hidden"] = (1, 1, head.built_for * (head.target_hidden_size or 0))
    return {name.replace("layers.0.", "midlayer."): shape for name, shape in shapes.items()}


def write(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A sparse file of weights: the disk holds the header only."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
