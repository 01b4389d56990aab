"""Hand-written plans, so that deploy is tested without the catalogue and the planner."""

from pathlib import Path
from typing import Any

from peagle.deploy.state import Revision, served_by_plan
from peagle.fit.estimate import Fit
from peagle.options import Options
from peagle.planning.plan import (
    EXECUTION_ROLE,
    MODEL_BUCKET,
    DrafterChoice,
    Mount,
    Plan,
    ProofPlan,
    RuntimeChoice,
    Speculation,
    TargetChoice,
    Weights,
)

SPECULATION = '{"method": "eagle3", "num_speculative_tokens": 5, "parallel_drafting": true}'
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle:0.28.0"


def a_plan(folder: Path | None = None, **changes: Any) -> Plan:
    """A pair from the Hub, or, with ``folder``, one whose drafter is in that folder."""
    drafter = Weights(kind="hub", location="a/head", engine_path="a/head")
    mounts: tuple[Mount, ...] = ()
    if folder is not None:
        prefix = "s3://${ModelBucket}/peagle-toolkit/peagle-pair/"
        drafter = Weights(
            kind="directory",
            location=str(folder),
            s3_uri=f"{prefix}drafter/",
            engine_path="/opt/ml/model/drafter",
        )
        mounts = (Mount(channel=None, s3_uri=prefix),)
    plan = Plan(
        name="peagle-pair",
        pair="a/target+a/head",
        region="us-east-1",
        target=TargetChoice(
            id="a/target",
            licence="apache-2.0",
            weight_bytes=1,
            weights=Weights(kind="hub", location="a/target", engine_path="a/target"),
        ),
        drafter=DrafterChoice(name="p-eagle", id="a/head", licence=None, weights=drafter),
        speculation=Speculation(method="eagle3", parallel_drafting=True, k=5, acceptance_floor=2.0),
        runtime=RuntimeChoice(vllm="0.28.0", image=IMAGE, cuda="13.0", ami=None),
        instance_type="ml.g5.xlarge",
        instance_count=1,
        max_model_len=2048,
        concurrency=4,
        engine_arguments=("--model", "a/target"),
        environment={"SM_VLLM_MODEL": "a/target", "SM_VLLM_SPECULATIVE_CONFIG": SPECULATION},
        mounts=mounts,
        download_timeout_seconds=600,
        startup_timeout_seconds=600,
        fit=Fit(
            fits=True,
            gpu="A10G",
            gpu_count=1,
            gpu_memory_gib=22.0,
            tensor_parallel_size=1,
            weights_gib=1.0,
            drafter_gib=0.1,
            kv_cache_gib=4.0,
            kv_cache_tokens=10_000,
            max_concurrency=4.0,
            terms={},
        ),
        price_per_hour_usd=1.408,
        price_date="2026-11-20",
        options=Options(pair="a/target+a/head"),
        proof=ProofPlan(prompts=("One?", "Two?"), chat=True, max_tokens=16),
        findings=(),
        reasons=(),
    )
    if "speculation" in changes and "environment" not in changes:
        changes["environment"] = {"SM_VLLM_MODEL": "a/target"}
    return plan.model_copy(update=changes)


def another(plan: Plan) -> Plan:
    """The plan with another K, as far as AWS can see."""
    return plan.model_copy(update={"environment": {**plan.environment, "SM_VLLM_K": "7"}})


def a_revision(plan: Plan, bucket: str | None = None, fingerprint: str = "0a1b2c3d") -> Revision:
    """The plan as applied with role ``r``."""
    filled = {EXECUTION_ROLE: "r", MODEL_BUCKET: bucket or ""}
    return Revision(
        fingerprint=fingerprint,
        served=served_by_plan(plan, filled),
        plan=plan,
        role="r",
        bucket=bucket,
        model="c",
        name="c",
    )
