"""The container and the pairs that ``peagle check`` refuses: what it stops itself, before vLLM is
started, and what it leaves to vLLM; and no pair that is good is stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.checks.registry import check
from peagle_serve.crash import parse_crash
from tests.engine import trials
from tests.unit.checks.cases import GEOMETRY, geometry_case
from tests.unit.checks.corpus import Broken
from tests.unit.checks.corpus_heads import HEADS
from tests.unit.checks.corpus_rest import REST
from tests.unit.containers.broken_pairs import ONLY_IN_THE_TOOLKIT, PAIR_CODES, SETTINGS, refusal

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


@pytest.mark.parametrize("broken", CORPUS.values(), ids=lambda broken: broken.name)
def test_the_container_refuses_a_broken_pair_with_the_code_of_the_rule(
    broken: Broken, tmp_path: Path
) -> None:
    case = broken.make(tmp_path)
    reported = refusal(case)
    if broken.name in SETTINGS:
        assert SETTINGS[broken.name] in str(reported)
    elif reported:
        code = reported.removeprefix("head and target do not match: ").partition(" ")[0]
        assert code in {finding.code for finding in check(case) if finding.level == "error"}
    else:
        assert broken.code not in PAIR_CODES or broken.name in ONLY_IN_THE_TOOLKIT


@pytest.mark.parametrize("name", CAUSES)
def test_a_refusal_by_vllm_has_a_known_cause(name: str) -> None:
    crash = parse_crash([f"(EngineCore pid=8) {line}" for line in LOG_LINES[name]])
    assert name in CORPUS
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
