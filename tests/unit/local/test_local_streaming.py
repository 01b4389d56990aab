"""Plans that stream their weights are for AWS: this machine has no role to read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.engine import state as records
from peagle.engine.cpu import cannot_run
from peagle.engine.local import start_local
from peagle.engine.machine import this_machine
from peagle.errors import Refused
from tests.unit.local.conftest import PlanFor

STREAMED = {
    "model_source": "s3://bucket/tiny/target/",
    "drafter": "s3://bucket/tiny/drafter/",
    "weights_by": "stream",
}


def test_local_up_refuses_streamed_weights_with_the_fix(
    engine_home: Path, plan_for: PlanFor
) -> None:
    with pytest.raises(Refused) as refused:
        start_local(plan_for(**STREAMED))

    assert "s3://bucket/tiny/" in refused.value.message
    assert refused.value.command[:2] == ("peagle", "deploy")
    assert records.local_engine_names() == ()


@pytest.mark.parametrize("variable", ["target", "drafter"])
def test_the_cpu_engine_has_no_streamer(plan_for: PlanFor, variable: str) -> None:
    environment = plan_for(**STREAMED).environment
    if variable == "drafter":
        environment = {**environment, "SM_VLLM_MODEL": "/opt/ml/model/target"}

    assert cannot_run(environment, 0, this_machine()) == (
        f"its {variable} (s3://bucket/tiny/{variable}/) is streamed, and the CPU engine has no "
        "streamer"
    )
