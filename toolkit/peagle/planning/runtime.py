"""Selects region, vLLM version, image, host AMI and endpoint name; and the price of an instance."""

from __future__ import annotations

import re
from typing import Literal

from peagle.case import DEFAULT_AMI, ami_for, build_case, parse_family
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.catalog.tables import (
    REFERENCE_REGION,
    Instance,
    Price,
    Runtime,
    RuntimeTable,
    domain,
    exact_image_uri,
    region_hint,
)
from peagle.checks import check
from peagle.checks.facts import is_aws_image
from peagle.checks.rules.version import below_minimum, unknown_version
from peagle.errors import Fix, NotFound, Refused, UserError
from peagle.findings import Finding, warning
from peagle.options import DEFAULT_REGION as DEFAULT_REGION
from peagle.options import REGION_VARIABLES as REGION_VARIABLES
from peagle.options import Options
from peagle.planning.company import prefixed
from peagle.planning.plan import PRICE_ELSEWHERE, Decisions
from peagle.planning.speculation import SelectedPair
from peagle.vllm import versions

MAX_NAME_LENGTH = 63
"""Of an endpoint, its config and its model, from SageMaker's service model."""

DEFAULT_PREFIX = "peagle-"
"""Of names that the user does not choose."""

_MAX_IMAGE_LENGTH = 255  # of a container's Image, from SageMaker's service model
_IMAGE = re.compile(r"[A-Za-z0-9][\w.\-/:@]*", re.ASCII)
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")


def choose_region(options: Options, table: RuntimeTable, decisions: Decisions) -> str:
    """The region. Raises NotFound for one without known AWS images."""
    if options.region is None:
        decisions.explain("region", DEFAULT_REGION, "default-region")
        return DEFAULT_REGION
    if options.region not in table.accounts and options.image is None:
        hint = region_hint(options.region, table.accounts)
        raise NotFound(
            f"AWS has no vLLM images in region {options.region!r}", hint, code="region-unknown"
        )
    return options.region


def choose_runtime(
    options: Options,
    catalog: Catalog,
    target: Target,
    drafter: Drafter | None,
    decisions: Decisions,
    takes_image: bool = True,
) -> Runtime:
    """The vLLM version.

    Raises NotFound for a version without an image, and Refused if it is also below the pair's
    minimum; both are the rules' findings. An image of the user's may have any version;
    ``takes_image``: the user may name one.
    """
    table = catalog.runtimes
    version = versions.normalize(options.vllm or table.default)
    asked = Options(
        pair=options.pair, vllm=version, image=options.image, instance_type=options.instance_type
    )
    case = build_case(catalog, target, drafter, asked)
    unknown = unknown_version(case, takes_image=takes_image)
    if unknown is not None:
        too_old = below_minimum(case)
        finding, kind = (too_old, Refused) if too_old else (unknown, NotFound)
        raise kind(finding.message, Fix(finding.fix, finding.command or ()), finding.code)
    if options.vllm is None:
        checked = table.checked.isoformat()
        decisions.explain("vllm", version, "catalogue-vllm", checked=checked)
    return case.runtime


def choose_image(
    options: Options,
    catalog: Catalog,
    runtime: Runtime,
    region: str,
    pair: SelectedPair,
    decisions: Decisions,
) -> str:
    """The image: the user's, or AWS's of that version in that region, with the finding that the
    region lacks it: the rules that check the whole plan take every image with a name for the
    user's."""
    image = options.image
    if image is None and not runtime.tag:  # for this machine only, where a process needs no image
        image = f"vllm/vllm-openai:v{runtime.vllm}"
    if image is None:
        asked = Options(pair=options.pair, vllm=runtime.vllm, region=region)
        case = build_case(catalog, pair.target, pair.drafter, asked)
        uri = exact_image_uri(catalog.runtimes, runtime, region)
        decisions.explain("image", uri, "image-of-aws", vllm=runtime.vllm, region=region)
        decisions.findings += check(case, only={"image-not-in-region"})
        return uri
    if len(image) > _MAX_IMAGE_LENGTH or not _IMAGE.fullmatch(image):
        raise UserError(
            f"{image[:60]!r} is not an image name",
            f"use ACCOUNT.dkr.ecr.{region}.{domain(region)}/NAME:TAG, at most "
            f"{_MAX_IMAGE_LENGTH} characters",
            code="invalid-image-name",
        )
    return image


def proof_source(image: str, table: RuntimeTable) -> Literal["counters", "log"]:
    """Where the proof reads what the engine counts. AWS's images expose no counters; those of this
    toolkit do."""
    return "log" if is_aws_image(image, table) else "counters"


def choose_ami(
    options: Options,
    table: RuntimeTable,
    runtime: Runtime,
    instance_type: str,
    decisions: Decisions,
) -> str | None:
    """The host AMI of the request; ``None`` for SageMaker's default. The rules judge the user's."""
    if options.ami is not None:
        return None if options.ami == DEFAULT_AMI else options.ami
    ami, family = ami_for(table, runtime, instance_type), parse_family(instance_type)
    if ami is None:
        decisions.explain("ami", "SageMaker's default", "ami-not-covered", family=family)
    elif family not in table.ami_families:
        decisions.explain("ami", ami, "ami-reported", family=family)
    else:
        decisions.explain("ami", ami, "ami-for-driver", cuda=runtime.cuda, family=family)
    return ami


def prefixed_name(endpoint: str) -> str:
    """The beginning of the names of alarms and dashboards of the endpoint, which policies allow."""
    return prefixed(endpoint, DEFAULT_PREFIX)


def check_name(name: str) -> str:
    """``name``, if it is valid for an endpoint. Raises UserError otherwise."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise UserError(
            f"{name[:MAX_NAME_LENGTH]!r} is not a valid endpoint name",
            f"use up to {MAX_NAME_LENGTH} letters, digits and hyphens; start and end with a letter "
            "or digit",
            "invalid-name",
        )
    return name


def choose_name(options: Options, pair: SelectedPair, decisions: Decisions) -> str:
    """The endpoint's name: the user's, or the target's short name; with the user's prefix, or
    ``peagle-``.

    A drafter other than the default is part of the name, so that both can run side by side.
    """
    prefix = options.name_prefix
    if options.name is not None:
        return check_name(prefixed(options.name, prefix))
    stem = pair.target.short_name
    if not pair.is_default:
        stem += f"-{pair.drafter.name if pair.drafter else 'plain'}"
    stem = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")
    name = check_name(f"{prefix or DEFAULT_PREFIX}{stem}"[:MAX_NAME_LENGTH].rstrip("-"))
    decisions.explain("name", name, "name-of-pair")
    return name


def find_price(instance: Instance, region: str) -> tuple[Price | None, tuple[Finding, ...]]:
    """As ``Instance.price_in``, with a finding unless the price is that of ``region``."""
    price = instance.price_in(region)
    command = ("peagle", "catalog", "refresh", "--prices", "--region", region)
    refresh = Fix("get prices from AWS's price list", command)
    if price is None:
        message = f"the catalogue has no price for {instance.type} in {region}"
        return None, (warning("price-unknown", "price", message, refresh),)
    if price.region == region:
        return price, ()
    message = f"the price of {instance.type} is for {REFERENCE_REGION}, not for {region}"
    return price, (warning(PRICE_ELSEWHERE, "price", message, refresh),)
