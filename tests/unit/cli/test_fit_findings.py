"""What ``peagle fit`` says of a pair beside its memory: the checks, with the fit's own settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.fitting import H200, answer, changed, folder, peagle, refused

WIDTHS = {"hidden_size": 256, "target_hidden_size": 256}


@pytest.mark.thorough
def test_a_pair_that_cannot_work_is_refused_with_the_fit_still_shown(tmp_path: Path) -> None:
    twenty, seqs = folder("gpt-oss-20b"), ("--max-num-seqs", "64")
    narrow = changed(tmp_path, "gpt-oss-20b", "p-eagle", **WIDTHS)
    named, placed = ("gpt-oss-20b", *H200, *seqs), ("--target", twenty, *H200, *seqs)
    assert "hidden-size-mismatch" in refused(*named, "--drafter", narrow)
    assert "hidden-size-mismatch" in refused(*placed, "--drafter", narrow)
    assert "head-not-a-drafter" in refused(*placed, "--drafter", twenty)
    assert "k-above-trained" in refused(*named, "--k", "12")
    assert "vllm-below-minimum" in refused(*named, "--vllm", "0.9.0")
    assert "context-above-target" in refused(*named, "--max-model-len", "200000")
    assert "target-differs" in refused(*named, "--target", folder("gpt-oss-120b"))
    old = ("--instance-type", "ml.g4dn.xlarge", *seqs)
    assert "gpu-too-old" in refused("gpt-oss-20b", *old)
    result = peagle(*named, "--k", "12")
    assert "[k-above-trained]" in result.stdout
    assert "K=12 exceeds the trained K of 10" in str(result.exception)


def test_rules_check_the_settings_of_fit() -> None:
    small = ("--kv-cache-dtype", "fp8", "--max-num-seqs", "8", "--max-model-len", "8192")
    hopper = ("gemma-4-31b", "--instance-type", "ml.p5en.48xlarge")
    assert refused(*hopper, *small) == {"sliding-flashinfer", "head-not-public"}
    assert "sliding-flashinfer" in refused(*hopper, *small, "--no-speculation")
    assert "sliding-flashinfer" in refused("gemma-4-31b", *H200, *small), "taken to be an H200"
    assert refused("gpt-oss-20b", "--instance-type", "ml.g5.12xlarge", *small) == {
        "fp8-cache-triton"
    }
    assert answer("gpt-oss-20b", *H200, *small)["findings"] == []
    assert answer("gpt-oss-20b", "--instance-type", "ml.g6e.xlarge", *small)["findings"] == []
