"""What ``peagle fit`` advises gives what it says, typed as it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.fitting import answer, shown
from toolkit.catalog import load_catalog


def typed(arguments: tuple[str, ...], advice: Any) -> tuple[str, ...]:
    """The arguments with the advised one instead of, or beside, what they had."""
    knob, value = advice["knob"], advice["value"].split(",")[0]
    option = (f"--{knob}",) if knob == value else (f"--{knob}", value)
    gone = ("--gpu-memory-gib", "--instance-type") if knob == "instance-type" else option[:1]
    pairs = list(zip(arguments[::2], arguments[1::2], strict=True))
    return (*(word for pair in pairs if pair[0] not in gone for word in pair), *option)


ADVISED = [
    ("--gpu-memory-gib", "44.4", "--max-model-len", "8192"),
    ("--gpu-memory-gib", "17", "--max-model-len", "120000", "--max-num-seqs", "300"),
    ("--instance-type", "ml.g6.12xlarge", "--max-num-batched-tokens", "4096"),
    ("--instance-type", "ml.g5.xlarge", "--tp", "1", "--vllm", "0.27.1"),
    ("--gpu-memory-gib", "80", "--max-num-seqs", "2000", "--vllm", "0.26.0"),
]


@pytest.mark.parametrize("asked", ADVISED, ids=" ".join)
def test_every_advice_gives_what_it_says(asked: tuple[str, ...]) -> None:
    catalog = load_catalog()
    tried = set()
    for target in catalog.targets.values():
        for drafter in target.drafters[:2]:
            pair = f"{target.short_name}+{drafter.name}"
            for advice in shown(pair, *asked)["advice"]:
                fit = shown(pair, *typed(asked, advice))
                assert fit["fits"], (pair, advice)
                for number in ("kv_cache_tokens", "max_concurrency"):
                    assert fit[number] == advice[number], (pair, advice)
                tried.add(advice["knob"])
    assert len(tried) >= 2, "some of them do not fit"


def test_another_machine_is_advised_with_its_own_defaults() -> None:
    asked = ("gpt-oss-120b", "--gpu-memory-gib", "44.4", "--max-model-len", "8192")
    (advice,) = [item for item in shown(*asked)["advice"] if item["knob"] == "instance-type"]
    other = answer("gpt-oss-120b", "--instance-type", advice["value"], "--max-model-len", "8192")
    assert other["settings"]["max_num_seqs"] == 1024, "not the 256 of the smaller GPU"
    assert advice["kv_cache_tokens"] == other["kv_cache_tokens"]


def test_a_gpu_that_cannot_compute_it_is_not_advised() -> None:
    asked = ("gpt-oss-20b", "--gpu-memory-gib", "15", "--max-model-len", "512", "--no-speculation")
    told = {advice["knob"]: advice["value"] for advice in shown(*asked)["advice"]}
    assert told["instance-type"].startswith("ml.")
    assert not told["instance-type"].startswith("ml.g4dn"), "a T4 has no bfloat16"
