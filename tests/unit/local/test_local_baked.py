"""A plan whose weights are in its image, on this machine: only a container has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.catalog import load_catalog
from peagle.engine.runner import LocalOptions
from peagle.errors import Refused
from peagle.images import Image
from peagle.planning import Options, Plan, make_plan
from tests.support import raises_code

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny:0.28.0"


@pytest.fixture
def plan() -> Plan:
    return make_plan(Options(pair="tiny", image=IMAGE, baked_weights=True), load_catalog())


def test_a_process_refuses_baked_weights(plan: Plan) -> None:
    with raises_code("weights-baked", Refused) as refused:
        LocalOptions().local_environment(plan)
    assert "--engine docker" in refused.value.fix


@pytest.mark.parametrize("labels", [{"peagle.weights": "baked"}, {}])
def test_a_baked_image_gets_no_weights_mounted(
    plan: Plan, own_home: Path, labels: dict[str, str]
) -> None:
    image = Image("mine", "sha256:1", "", 1, None, "10001", labels, ())
    host = LocalOptions(image)
    assert host.container(plan, plan.environment, 8000).mounts == {}
