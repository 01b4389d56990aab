"""All rules, asked of what was planned."""

from __future__ import annotations

from collections.abc import Mapping

from peagle.case import CaseOptions, Checkpoints, build_case
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import Runtime
from peagle.checks import check
from peagle.findings import Finding
from peagle.planning.candidates import Hosting
from peagle.planning.drafter import SelectedPair
from peagle.planning.engine_settings import Workload
from peagle.planning.plan import Options


def check_plan(
    options: Options,
    catalog: Catalog,
    *,
    pair: SelectedPair,
    work: Workload,
    hosting: Hosting,
    runtime: Runtime,
    region: str,
    image: str,
    ami: str | None,
    environment: Mapping[str, str],
) -> tuple[Finding, ...]:
    """What the rules say of the plan that is made of these choices, errors first.

    Steps of planning ask some of the rules on their way; what those found is found again, in the
    same words.
    """
    planned = CaseOptions(
        k=work.k,
        # Planning shortens what the target does not support; the rules see what was asked for.
        max_model_len=options.max_model_len or work.max_model_len,
        vllm=runtime.vllm,
        concurrency=work.concurrency,
        instance_type=hosting.instance.type,
        region=region,
        image=image,
        ami=ami,
        tensor_parallel_size=hosting.fit.tensor_parallel_size,
        environment=environment,
    )
    read = Checkpoints(drafter=options.drafter_checkpoint)
    return check(build_case(catalog, pair.target, pair.drafter, planned, read))
