"""Drift: where the account differs from a plan, field by field. Reads only.

What the endpoint serves is compared by ``Served``, as an update's changes are; what ``Served``
does not contain (role, capture, routing, tags) by the plan's own requests, and what is outside of
the endpoint by its kind (``resources``). Someone else may have made what serves: the plan counts,
not the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, field_serializer

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import InstanceTable
from peagle.deploy import records, resources
from peagle.deploy.diff import Change, compare_served
from peagle.deploy.discover import Live, current_deployment
from peagle.deploy.kinds import AppliedPlan, Kind, compare_keys, compare_kind, compare_leaves
from peagle.deploy.preflight import DesiredState, desired_state, role_and_bucket
from peagle.deploy.scaling import budget_in, end_in
from peagle.errors import CloudError, Fix, UserError
from peagle.frozen import Result
from peagle.planning.plan import Plan
from peagle.planning.weights import parse_pins
from peagle.render import RenderedFile, format_files, format_names, render
from peagle.render.files import PLAN
from peagle.weights.mounted import pin_plan
from peagle_serve.json_reader import read_regular

_CONFIGURATION = frozenset(
    {"ami", "instance_type", "startup_timeout_seconds", "download_timeout_seconds", "kms_key"}
)
_ENDPOINT = frozenset({"instance_count", "copies"})
"""Settings of ``Served`` by the resource that has them; the others are the model's."""

_VARIANT = (
    "RoutingConfig", "VolumeSizeInGB", "ServerlessConfig", "CoreDumpConfig",
    "ManagedInstanceScaling",
)  # fmt: skip
"""Parts of a variant of the configuration that ``Served`` does not contain. The endpoint's own
description may have other values while SageMaker changes it."""

_LARGEST_FILE = 16_000_000
"""Bytes of a rendered file."""

_NO_TEMPLATE = ("README.md", PLAN)
"""Rendered files that nothing is created from."""


@dataclass(frozen=True)
class Compared(Live):
    """What is compared: what the account has, and the plan with names and role filled in."""

    desired: DesiredState
    instances: InstanceTable

    @property
    def plan(self) -> Plan:
        return self.desired.plan


class Drift(Result):
    """All differences of a deployment: what applying the plan would change. ``unknown`` are the
    areas that could not be read."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str
    region: str
    drifted: bool
    fields: tuple[Change, ...]
    compared: tuple[str, ...]
    unknown: dict[str, CloudError]

    @field_serializer("fields")
    def _list_fields(self, fields: Sequence[Change]) -> list[dict[str, Any]]:
        return [
            {"field": change.setting, "planned": change.after, "found": change.before}
            for change in fields
        ]

    @field_serializer("unknown")
    def _list_by_area(self, unknown: Mapping[str, CloudError]) -> list[dict[str, Any]]:
        return [{"area": area, **error.document()} for area, error in unknown.items()]


def find_drift(
    aws: Aws,
    plan: Plan,
    instances: InstanceTable,
    role: str | None = None,
    of_files: Sequence[Change] = (),
) -> Drift:
    """Compare the plan, as deploy would apply it, with the account; ``of_files`` are differences of
    rendered files. What may not be read is unknown, and named; raises CloudError when the endpoint
    itself cannot be looked up."""
    live = sagemaker.describe(aws, plan.name)
    fields: list[Change] = []
    unknown: dict[str, CloudError] = {}
    if live is None:
        areas: tuple[str, ...] = ("endpoint",)
        fields.append(Change("endpoint.status", None, "InService"))
    else:
        stored = records.load_record(aws.scope, aws.region, plan.name)
        record = current_deployment(aws, plan.name, stored, lambda: instances, live)
        serving = parse_pins(record.current.served.variables) if record else None
        used, bucket = role_and_bucket(aws, plan, record, role)
        desired = desired_state(pin_plan(aws, plan, serving)[0], used.arn, bucket, record)
        compared = Compared(aws, live, desired, instances)
        for area, compare in _AREAS.items():
            try:
                fields += compare(compared)
            except CloudError as error:
                unknown[area] = error
        areas = tuple(area for area in _AREAS if area not in unknown)
    fields += of_files
    return Drift(
        name=plan.name,
        region=aws.region,
        drifted=bool(fields),
        fields=tuple(fields),
        compared=areas,
        unknown=unknown,
    )


def served_image(aws: Aws, name: str) -> str | None:
    """The image of what the endpoint serves; ``None`` where there is no endpoint."""
    live = sagemaker.describe(aws, name)
    return (Live(aws, live).model.get("PrimaryContainer") or {}).get("Image") if live else None


def find_template_drift(plan: Plan, folder: Path, catalog: Catalog) -> tuple[Change, ...]:
    """Where the files of ``folder``, which ``peagle render`` wrote, differ from what it would write
    of this plan. Where several formats have such files, the one that differs
    least counts. Raises UserError for a folder without the files of a format."""
    formats = {name: format_files(name) for name in format_names()}
    written = [
        name for name, files in formats.items() if all((folder / file).is_file() for file in files)
    ]
    if not written:
        raise UserError(
            f"{folder} does not have the files of any format",
            Fix("write them", ("peagle", "render", "FORMAT", "PLAN", "-o", str(folder))),
            code="no-rendered-files",
        )
    drifts = [tuple(_template_drift(render(name, plan, catalog), folder)) for name in written]
    return min(drifts, key=len)


def _template_drift(files: tuple[RenderedFile, ...], folder: Path) -> list[Change]:
    drifted: list[Change] = []
    for file in files:
        try:
            written = read_regular(folder / file.path, _LARGEST_FILE)
        except OSError as error:
            message = f"{folder / file.path} cannot be read: {error.strerror}"
            raise UserError(message, "check the file", code="unreadable-file") from None
        if file.path in _NO_TEMPLATE or written == file.content:
            continue
        drifted.append(Change(f"template.{file.path}", "other text", "as rendered"))
    return drifted


def _served(compared: Compared) -> Iterator[Change]:
    """What ``Served`` has, but not numbers of instances or copies that scaling may have chosen."""
    scaling = compared.plan.scaling
    chosen = {}
    if scaling is not None:
        chosen["instance_count"] = range(scaling.min_instances, scaling.max_instances + 1)
        if scaling.scales_copies:
            chosen["copies"] = range(scaling.minimum, scaling.maximum + 1)
    for change in compare_served(
        compared.served(compared.instances), compared.desired.revision.served
    ):
        if change.setting == "usd_per_hour" or change.before in chosen.get(change.setting, ()):
            continue
        area = "configuration" if change.setting in _CONFIGURATION else "model"
        area = "endpoint" if change.setting in _ENDPOINT else area
        yield Change(f"{area}.{change.setting}", change.before, change.after)


def _configuration(compared: Compared) -> Iterator[Change]:
    """What ``Served`` does not have: data capture, routing, volume, further variants."""
    config, planned = compared.config, compared.desired.config
    sides = [
        {
            "variants": len(side.get("ProductionVariants") or ()),
            "shadow_variants": len(side.get("ShadowProductionVariants") or ()),
        }
        for side in (planned, config)
    ]
    yield from compare_keys("configuration", *sides)
    capture = "DataCaptureConfig"
    yield from compare_leaves(f"configuration.{capture}", planned.get(capture), config.get(capture))
    variants = (planned["ProductionVariants"][0], config["ProductionVariants"][0])
    for key in _VARIANT:
        yield from compare_leaves(
            f"configuration.{key}", *(variant.get(key) for variant in variants)
        )


def _tags(compared: Compared) -> Iterator[Change]:
    """The user's tags on endpoint, configuration and model. Further tags are others'."""
    planned = compared.plan.company.tags
    if not planned:
        return
    arns = {
        "Endpoint": compared.endpoint.arn,
        "EndpointConfig": compared.config["EndpointConfigArn"],
        "Model": compared.model["ModelArn"],
    }
    for kind, arn in arns.items():
        tags = sagemaker.read_tags(compared.aws, arn)
        yield from compare_keys(f"tags.{kind}", planned, {key: tags.get(key) for key in planned})


def _limit(compared: Compared) -> Iterator[Change]:
    """The end and the budget, in the endpoint's tags. A plan without a limit keeps what is set."""
    if limit := compared.plan.limit:
        ends_at = None if end_in(compared.tags) is None else "set"
        planned = {"ends_at": None if limit.removes else "set", "budget_usd": limit.budget_usd}
        actual = {"ends_at": ends_at, "budget_usd": budget_in(compared.tags)}
        yield from compare_keys("limit", planned, actual)


def _compare_kind(kind: Kind, compared: Compared) -> Iterator[Change]:
    """What is outside of the endpoint; its end is the one in its tags."""
    plan, limit = compared.plan, compared.plan.limit
    ends_at = end_in(compared.tags) if limit and not limit.removes else None
    applied = AppliedPlan(plan, compared.endpoint.revision, ends_at)
    return compare_kind(kind, compared.aws, applied)


_AREAS: dict[str, Callable[[Compared], Iterator[Change]]] = {
    "endpoint": lambda compared: compare_keys(
        "endpoint", {"status": "InService"}, {"status": compared.endpoint.status}
    ),
    "settings": _served,
    "role": lambda compared: compare_keys(
        "model",
        {"role": compared.desired.model["ExecutionRoleArn"]},
        {"role": compared.model.get("ExecutionRoleArn")},
    ),
    "configuration": _configuration,
    "limit": _limit,
    **{
        kind.area: partial(_compare_kind, kind)
        for kind in (resources.SCALING, *resources.SETTINGS, resources.SCHEDULE)
    },
    "tags": _tags,
}
"""What is compared, each alone: what may not be read is unknown, and the rest is compared."""
