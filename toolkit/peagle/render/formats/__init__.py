"""The formats that a plan can be rendered in. A format is one module of this package.

The module's name is the format's name. It defines

    FILES          the files it writes, README.md included; `render` adds the plan file, for drift
    render         (plan, catalog) -> the files
    unsupported    (plan) -> what the format cannot express of this plan, "" for nothing
    NO_ENDPOINT    optional: true for a format that makes no endpoint, but an image or one container

A new module is listed, rendered and named in errors without further changes.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from peagle.catalog.schema import Catalog
from peagle.errors import NotFound, Unsupported, nearest
from peagle.planning.plan import Plan, refuse_here
from peagle.render.files import PLAN, RenderedFile, json_file
from peagle.render.plan_file import plan_document
from peagle.text import join_with_or


def format_names() -> tuple[str, ...]:
    """The names of all formats, sorted."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def format_files(format: str) -> tuple[str, ...]:
    """The paths of the files that a format writes. Raises NotFound for an unknown format."""
    return (*_module(format).FILES, PLAN)


_FORMAT_UNSUPPORTED = "format-unsupported"
"""The format cannot express something of the plan; the message says what.

Fix: use one of the formats that the error names
"""


def render(format: str, plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    """The files that express the plan, made with this catalogue, in this format. Raises NotFound
    for an unknown format, and Unsupported when the format cannot express all of the plan."""
    module = _module(format)
    refuse_here(plan)
    if reason := module.unsupported(plan):
        others = [
            name
            for name in format_names()
            if not getattr(_module(name), "NO_ENDPOINT", False)
            and not _module(name).unsupported(plan)
        ]
        fix = f"use {join_with_or(others)}" if others else "no format can express this plan"
        raise Unsupported(f"{format}: {reason}", fix, code=_FORMAT_UNSUPPORTED)
    files: tuple[RenderedFile, ...] = module.render(plan, catalog)
    return (*files, json_file(PLAN, plan_document(plan)))


def _module(format: str) -> Any:
    names = format_names()
    if format not in names:
        hint = nearest(format, names) or f"formats: {', '.join(names)}"
        raise NotFound(f"unknown format {format!r}", hint, code="unknown-format")
    return import_module(f"{__name__}.{format}")


def only_sagemaker(plan: Plan, host: str) -> str:
    """What no other host of engines expresses; "" for nothing. ``host`` says whose the machines
    are."""
    company, observe = plan.company, plan.observe
    reasons = {
        f"--ami sets the host's image: {host}": plan.overrides.ami is not None,
        f"subnets and security_groups set a VPC: {host}": company.in_vpc,
        f"network_isolation: {host}": company.network_isolation,
        f"kms_key encrypts the instances' volumes: {host}": company.kms_key is not None,
        "--rollout needs alarms that undo an update": plan.rollout is not None,
        "--scale-to-zero wakes on SageMaker's count of the requests that found no copy": bool(
            plan.scaling and plan.scaling.scales_to_zero
        ),
        "--ttl and --budget need a schedule that deletes the endpoint": plan.limit is not None,
        "--observe makes a dashboard and alarms in CloudWatch": bool(
            observe and (observe.dashboard or observe.alarms or observe.alarm_topic)
        ),
        "log_retention is of a log in CloudWatch": bool(observe and observe.log_retention_days),
        "weights_by stream reads S3 with the role of an endpoint": any(
            model.weights.streamed
            for model in (plan.target, plan.drafter)
            if model and model.weights
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")
