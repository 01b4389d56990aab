"""Prefixes one level off."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.aws.client import Aws
from peagle.errors import NotFound
from peagle.weights.inspect import inspect_weights
from peagle.weights.layout import weights_prefix
from tests.unit.aws.syncing import PLACE, folder_weights, plan_for, sync, write_model


@pytest.mark.thorough
@pytest.mark.parametrize("uri", ["s3://models", "s3://models/pair/target"])
def test_a_prefix_one_level_off_is_refused_with_the_right_one(
    aws: Aws, tmp_path: Path, uri: str
) -> None:
    weights = folder_weights(write_model(tmp_path / "target"))
    sync(aws, target=weights)

    with pytest.raises(NotFound) as missing:
        inspect_weights(aws, weights_prefix(uri))
    (finding,) = plan_for(aws, weights_prefix(uri), target=weights).findings

    assert missing.value.command == ("peagle", "weights", "list", "s3://models/pair/")
    assert finding.level == "error"
    assert finding.command == ("peagle", "weights", "list", "s3://models/pair/")


@pytest.mark.thorough
def test_a_pair_below_another_is_named(aws: Aws, tmp_path: Path) -> None:
    weights = folder_weights(write_model(tmp_path / "target"))
    sync(aws, target=weights)
    sync(aws, weights_prefix("s3://models/pair/other"), target=weights)

    (below,) = inspect_weights(aws, PLACE).findings

    assert below.command == ("peagle", "weights", "list", "s3://models/pair/other/")
