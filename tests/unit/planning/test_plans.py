"""A plan for a pair whose head is in S3."""

from __future__ import annotations

from typing import cast

import pytest

from peagle.aws.client import Aws
from peagle.catalog import load_catalog
from peagle.checkpoints import FolderSource, read_checkpoint
from peagle.data import data_folder
from peagle.weights.own_target import plan_pair

HEAD = "s3://bucket/heads/mine/"


@pytest.mark.parametrize("copied", ["", "peagle/tiny+p-eagle"])
def test_the_pair_stays_the_named_one_whatever_the_head_is_a_copy_of(
    copied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = read_checkpoint(FolderSource(data_folder("model_catalog") / "peagle/tiny/p-eagle"))
    read = {"drafter": HEAD, "drafter_checkpoint": head}
    monkeypatch.setattr("peagle.weights.own_target.own_head", lambda location, aws_of: read)
    monkeypatch.setattr("peagle.weights.bucket.copied_pair", lambda aws, location: copied)
    made = plan_pair("tiny", {"drafter": HEAD}, load_catalog(), lambda: cast(Aws, None))
    assert made.target.id == "peagle/tiny"
    assert made.drafter is not None
    assert made.drafter.weights is not None
    assert made.drafter.weights.location == HEAD
