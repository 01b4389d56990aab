"""Every field of a plan that says how it is served changes the manifests, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.errors import Unsupported
from peagle.planning.company import Company
from peagle.planning.copies import Copies
from peagle.planning.operation_model import Capture, Limit, Observe, Rollout, Scaling
from peagle.planning.options import Overrides
from peagle.planning.plan import Mount, Pins, Plan
from peagle.render import render
from tests.unit.rendering.plans import CATALOG, plan_of

FORMATS = ("hyperpod", "kserve")
PLAN = plan_of("uploaded")

INFORMATION = {
    "format", "concurrency", "engine_arguments", "price_per_hour_usd", "price_date",
    "workload", "prompt_tokens", "cached_prompt_tokens", "shared_prompt_tokens",
    "output_tokens", "batch", "slo", "speed",
    "without_speculation", "alternatives",
    "findings", "reasons",
}  # fmt: skip
"""Fields that say why, for whom, or the same as the environment does."""

ONLY_IN_THE_PLAN_FILE = {"proof"}
"""The gate reads them from plan.json."""


def inner(field: str, **changed: Any) -> dict[str, Any]:
    return {field: getattr(PLAN, field).model_copy(update=changed)}


def company(**set_by: Any) -> dict[str, Any]:
    return {"company": Company(**set_by)}


SCALING = Scaling(
    min_instances=1,
    max_instances=4,
    target_concurrency=8,
    scale_in_cooldown_seconds=300,
    scale_out_cooldown_seconds=60,
)
ROLLOUT = Rollout(
    kind="all-at-once",
    step=None,
    baking_seconds=60,
    extra_instances=1,
    extra_usd_per_hour=None,
    alarms=(),
)
CAPTURE = Capture(s3_uri="s3://captured", percent=9)
CHANGES: dict[str, dict[str, Any]] = {
    "name": {"name": "other"},
    "pair": {"pair": "peagle/tiny+eagle3"},
    "region": {"region": "eu-west-1"},
    "target": inner("target", weights=PLAN.target.weights.model_copy(update={"s3_uri": "s3://a/t"})),
    "drafter": {"drafter": None},
    "speculation": inner("speculation", k=3),
    "runtime.image": inner("runtime", image="123456789012.dkr.ecr.us-east-1.amazonaws.com/x:1"),
    "runtime.ami": inner("runtime", ami="another"),
    "runtime.cuda": inner("runtime", cuda="12.9"),
    "runtime.vllm": inner("runtime", vllm="0.27.0"),
    "instance_type": {"instance_type": "ml.g6e.xlarge"},
    "instance_count": {"instance_count": 3},
    "copies": {"copies": Copies(per_instance=2, gpus=1, cpu_cores=1, memory_mib=1024)},
    "max_model_len": {"max_model_len": 1024},
    "environment": {"environment": {**PLAN.environment, "SM_VLLM_SEED": "1"}},
    "environment.own": {"environment": {**PLAN.environment, "NCCL_DEBUG": "INFO"}},
    "mounts": {"mounts": (Mount(channel=None, s3_uri="s3://${ModelBucket}/elsewhere/"),),
               **inner("drafter", weights=PLAN.drafter.weights.model_copy(  # type: ignore[union-attr]
                   update={"s3_uri": "s3://${ModelBucket}/elsewhere/drafter/"}))},
    "download_timeout_seconds": {"download_timeout_seconds": 3000},
    "startup_timeout_seconds": {"startup_timeout_seconds": 3000},
    "fit": inner("fit", tensor_parallel_size=2),
    "overrides.ami": {"overrides": Overrides(ami="default")},
    "pins": {"pins": Pins(weights="a" * 64),
             "environment": {**PLAN.environment, "PEAGLE_WEIGHTS_SHA256": "a" * 64}},
    "rollout": {"rollout": ROLLOUT},
    "scaling": {"scaling": SCALING},
    "company.network": company(subnets=("subnet-0a1b2c3d",), security_groups=("sg-0a1b2c3d",)),
    "company.isolation": company(network_isolation=True),
    "company.key": company(kms_key="alias/x"),
    "company.tags": company(tags={"a": "b"}),
    "company.boundary": company(permissions_boundary="arn:aws:iam::aws:policy/x"),
    "limit": {"limit": Limit(ttl_seconds=3600)},
    "observe.dashboard": {"observe": Observe(dashboard=True)},
    "observe.alarms": {"observe": Observe(dashboard=False, alarms=("errors",))},
    "observe.log": {"observe": Observe(dashboard=False, log_retention_days=3)},
    "observe.capture": {"observe": Observe(dashboard=False, capture=CAPTURE)},
}  # fmt: skip


def files(format: str, plan: Plan) -> dict[str, bytes]:
    """The rendered files but the plan itself, which has every field."""
    rendered = {file.path: file.content for file in render(format, plan, CATALOG)}
    del rendered["plan.json"]
    return rendered


@pytest.mark.thorough
@pytest.mark.parametrize("format", FORMATS)
def test_every_field_is_expressed_or_refused(format: str) -> None:
    before, ignored, refused = files(format, PLAN), [], {}
    for name, changed in CHANGES.items():
        try:
            if files(format, PLAN.model_copy(update=changed)) == before:
                ignored.append(name)
        except Unsupported as error:
            refused[name] = error.message

    assert ignored == []
    assert {"limit", "rollout", "company.key"} <= set(refused)
    assert ("scaling" in refused, "observe.capture" in refused) == (format == "kserve",) * 2


def test_no_field_of_a_plan_is_forgotten() -> None:
    changed = {name.partition(".")[0] for name in CHANGES}
    assert changed | INFORMATION | ONLY_IN_THE_PLAN_FILE | {"options"} == set(Plan.model_fields)
