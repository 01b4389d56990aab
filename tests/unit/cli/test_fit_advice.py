"""What ``peagle fit`` advises gives what it says, typed as it is."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.fit.models import Advice
from tests.unit.cli.fitting import answer, folder, shown

FLAGS = ("--no-speculation", "--text-only", "--enforce-eager", "--compiled")


def options(arguments: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The arguments by option, each with its value if it has one."""
    words, found = list(arguments), []
    while words:
        size = 1 if words[0] in FLAGS else 2
        found.append(tuple(words[:size]))
        del words[:size]
    return found


def typed(arguments: tuple[str, ...], advice: Any) -> tuple[str, ...]:
    """The arguments with the advised one instead of, or beside, what they had."""
    knob, value = advice["knob"], advice["value"].split(",")[0]
    option = (f"--{knob}",) if knob == value else (f"--{knob}", value)
    gone = ("--gpu-memory-gib", "--instance-type") if knob == "instance-type" else option[:1]
    kept = (word for given in options(arguments) if given[0] not in gone for word in given)
    return (*kept, *option)


PAIRS = [
    f"{target.short_name}+{drafter.name}"
    for target in load_catalog().targets.values()
    for drafter in target.drafters[:2]
]
HARDWARE = [
    ("--gpu-memory-gib", "17"),
    ("--gpu-memory-gib", "24"),
    ("--gpu-memory-gib", "44.4"),
    ("--gpu-memory-gib", "79.2"),
    ("--instance-type", "ml.g5.xlarge"),
    ("--instance-type", "ml.g6.12xlarge"),
    ("--instance-type", "ml.p4d.24xlarge"),
    ("--instance-type", "ml.p5.4xlarge"),
]
LOADS = [
    ("--max-model-len", "8192"),
    ("--max-model-len", "120000", "--max-num-seqs", "300"),
    ("--max-model-len", "10000000"),
    ("--max-num-batched-tokens", "4096"),
    ("--max-num-batched-tokens", "65536", "--max-num-seqs", "8"),
    ("--max-num-seqs", "2000", "--vllm", "0.26.0"),
    ("--tp", "1", "--vllm", "0.27.1", "--gpu-memory-utilization", "0.5"),
    ("--k", "1000", "--max-num-seqs", "64"),
    ("--k", "5", "--max-num-seqs", "64", "--text-only"),
    ("--compiled", "--max-num-seqs", "256"),
    ("--no-speculation", "--max-model-len", "60000"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("load", LOADS, ids=" ".join)
def test_every_advice_gives_what_it_says(load: tuple[str, ...]) -> None:
    """And no rule refuses it: the exit code is 0."""
    tried = 0
    for pair, hardware in Random(" ".join(load)).sample(list(product(PAIRS, HARDWARE)), 10):
        if tried >= 4:
            break
        arguments = (*hardware, *load)
        for advice in shown(pair, *arguments)["advice"]:
            fit = answer(pair, *typed(arguments, advice))
            for number in ("kv_cache_tokens", "max_concurrency"):
                assert fit[number] == advice[number], (pair, arguments, advice)
            tried += 1
    assert tried, "some of them do not fit"


def knobs(*arguments: str) -> dict[str, str]:
    return {advice["knob"]: advice["value"] for advice in shown(*arguments)["advice"]}


ALONE = ("--max-model-len", "16384", "--max-num-seqs", "8", "--no-speculation")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ("gemma-4-31b", "--instance-type", "ml.p5.4xlarge", *ALONE),
        ("gemma-4-31b+p-eagle", "--instance-type", "ml.p5.4xlarge", *ALONE[:-1]),
        ("gemma-4-31b", "--gpu-memory-gib", "79.2", *ALONE),
        ("gpt-oss-20b", "--instance-type", "ml.g5.xlarge", "--max-num-seqs", "8"),
    ],
)
def test_a_cache_that_the_rules_refuse_is_not_advised(arguments: tuple[str, ...]) -> None:
    assert "kv-cache-dtype" not in knobs(*arguments)
    assert knobs(*arguments), "but others are"


@pytest.mark.thorough
def test_requested_speculation_is_not_advised_away() -> None:
    arguments = ("gpt-oss-20b", "--instance-type", "ml.g5.xlarge", "--max-num-seqs", "8")
    assert "no-speculation" in knobs(*arguments)
    assert "no-speculation" not in knobs(*arguments, "--k", "7")
    head = ("--drafter", folder("gpt-oss-20b", "p-eagle"))
    assert "no-speculation" not in knobs(*arguments, *head)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("knob", "value", "options"),
    [
        ("tp", "4", ("--tensor-parallel-size", "4")),
        ("no-speculation", "no-speculation", ("--no-speculation",)),
        ("instance-type", "ml.p5.48xlarge, 4 of its 8 GPUs", ("--instance-type", "ml.p5.48xlarge")),
    ],
)
def test_advice_is_the_arguments_to_type(knob: str, value: str, options: tuple[str, ...]) -> None:
    assert Advice(knob=knob, value=value, kv_cache_tokens=1, max_concurrency=1.0).options == options
