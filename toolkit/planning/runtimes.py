"""Which vLLM, in which image, on which host AMI, and what is known against them."""

from __future__ import annotations

import re
import shlex

from toolkit.catalog import versions
from toolkit.catalog.images import domain, image_uri
from toolkit.catalog.models import Drafter, Runtime, RuntimeTable, Target
from toolkit.errors import NotFound, Refused, UserError, nearest
from toolkit.findings import Finding, error, warning
from toolkit.planning.choice import Choice, chosen
from toolkit.planning.drafters import Chosen
from toolkit.planning.models import Options

DEFAULT_REGION = "us-east-1"

IMAGE_WITHOUT_COUNTERS = "image-without-counters"
"""Code of the finding that the image cannot prove speculation, for who would say it again."""

_MAX_IMAGE_LENGTH = 255  # of a container's Image, from SageMaker's service model
_IMAGE = re.compile(r"[A-Za-z0-9][\w.\-/:@]*", re.ASCII)
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9\-]+)\.[a-z0-9.\-]+/\S+")


_NEWER = "leave --vllm out, or name a newer version"


def choose_region(options: Options, table: RuntimeTable) -> Choice[str]:
    """The region. Raises NotFound for one in which AWS's images are not known."""
    if options.region is None:
        return chosen(DEFAULT_REGION, "region", "neither --region nor AWS_REGION was given")
    if options.region not in table.accounts and options.image is None:
        known = ", ".join(sorted(table.accounts))
        hint = nearest(options.region, table.accounts) or f"there are {known}"
        raise NotFound(f"{options.region!r} is not a region with AWS's vLLM images", hint)
    return Choice(options.region)


def choose_runtime(
    options: Options, table: RuntimeTable, target: Target, drafter: Drafter | None
) -> Choice[Runtime]:
    """The vLLM version. Below what the pair needs, or with a known problem: a finding.

    Raises NotFound for a version that the catalogue has no image of, and Refused when that is
    also older than what the pair needs.
    """
    by_version = {versions.normalise(runtime.vllm): runtime for runtime in table.runtimes}
    version = versions.normalise(options.vllm or table.default)
    if version not in by_version:
        who, minimum = _minimum(target, drafter)
        if versions.compare(version, minimum) < 0:
            raise Refused(f"{who} needs vLLM {minimum} or later, not {version}", _NEWER)
        known = sorted(by_version, key=versions.parse)
        fit = [name for name in known if versions.compare(name, minimum) >= 0]
        near, there = nearest(version, fit), ", ".join(fit) or "none"
        hint = f"{near} this pair needs {minimum} or later; there are {there}".strip()
        raise NotFound(f"the catalogue has no image with vLLM {version}", hint)
    runtime = by_version[version]
    findings = (*_too_old(runtime, target, drafter), *_problems(runtime, drafter))
    if options.vllm is not None:
        return Choice(runtime, findings=findings)
    because = f"the catalogue's default, checked {table.checked.isoformat()}"
    return Choice(runtime, chosen(runtime, "vllm", because, shown=version).reasons, findings)


def _too_old(runtime: Runtime, target: Target, drafter: Drafter | None) -> tuple[Finding, ...]:
    who, minimum = _minimum(target, drafter)
    if versions.compare(runtime.vllm, minimum) >= 0:
        return ()
    return (
        error(
            "vllm-below-minimum",
            "vllm",
            f"{who} needs vLLM {minimum} or later, not {runtime.vllm}",
            _NEWER,
        ),
    )


def _minimum(target: Target, drafter: Drafter | None) -> tuple[str, str]:
    """Whose need is the greater, and the oldest vLLM that the pair runs on."""
    needs = [(target.title, target.min_vllm)]
    if drafter is not None:
        needs.append((drafter.title, drafter.min_vllm))
    return max(needs, key=lambda need: versions.parse(need[1]))


def _problems(runtime: Runtime, drafter: Drafter | None) -> tuple[Finding, ...]:
    """What the catalogue knows against this drafter on this version."""
    return tuple(
        Finding(
            code=problem.code,
            level=problem.level,
            where="drafter",
            message=f"{problem.summary} ({problem.source})",
            fix=problem.fix,
        )
        for problem in (drafter.problems if drafter else ())
        if problem.vllm is None or versions.in_range(runtime.vllm, problem.vllm)
    )


def choose_image(
    options: Options, table: RuntimeTable, runtime: Runtime, region: str, pair: Chosen
) -> Choice[str]:
    """The image: AWS's of that version in that region, or the user's."""
    if options.image is not None:
        wrong = _image_findings(options.image, region)
        mute = _without_counters(options.image, table, pair)
        return Choice(options.image, findings=(*wrong, *mute))
    image = image_uri(table, runtime, region)
    missing: tuple[Finding, ...] = ()
    if runtime.regions and region not in runtime.regions:
        others = [r.vllm for r in table.runtimes if not r.regions or region in r.regions]
        fix = f"use --vllm {others[-1]}" if others else "use another --region"
        message = f"AWS has no image of vLLM {runtime.vllm} in {region}"
        missing = (error("image-not-in-region", "region", message, f"{fix}, or --image"),)
    because = f"AWS's image of vLLM {runtime.vllm} in {region}"
    mute = _without_counters(image, table, pair)
    return Choice(image, chosen(image, "image", because).reasons, (*missing, *mute))


def _without_counters(image: str, table: RuntimeTable, pair: Chosen) -> tuple[Finding, ...]:
    """A warning of AWS's own image: it drafts, but no endpoint shows the engine's counters."""
    found = _ECR.fullmatch(image)
    if pair.drafter is None or found is None or found[1] not in table.accounts.values():
        return ()
    message = (
        "AWS's own image does not tell how many drafts it accepts, so deploy on AWS ends as not "
        "proved"
    )
    words = [f"{pair.target.short_name}+{pair.drafter.name}"]
    if pair.own is not None:
        words = [pair.target.short_name, "--drafter", pair.own]
    fix = (
        f"build ours with `peagle render dockerfile {shlex.join(words)} -o DIR`, push it, and "
        "give --image URI"
    )
    return (warning(IMAGE_WITHOUT_COUNTERS, "image", message, fix),)


def _image_findings(image: str, region: str) -> tuple[Finding, ...]:
    if len(image) > _MAX_IMAGE_LENGTH or not _IMAGE.fullmatch(image):
        raise UserError(
            f"{image[:60]!r} is not the name of an image",
            f"write ACCOUNT.dkr.ecr.{region}.{domain(region)}/NAME:TAG, at most "
            f"{_MAX_IMAGE_LENGTH} characters",
        )
    found = _ECR.fullmatch(image)
    if found is None:
        message = f"SageMaker takes images from ECR only, and {image} is not one"
        fix = "push it: `peagle render dockerfile PAIR -o DIR` says how"
        return (error("image-not-in-ecr", "image", message, fix),)
    if found[2] != region:
        message = f"the image lies in {found[2]}, and the endpoint would be in {region}"
        fix = f"push it to ECR in {region}, or use --region {found[2]}"
        return (error("image-in-another-region", "image", message, fix),)
    return ()


def choose_ami(table: RuntimeTable, runtime: Runtime, instance_type: str) -> Choice[str | None]:
    """The host AMI to name in the request; ``None`` leaves it to SageMaker.

    The image needs a driver that is new enough, which the default AMI of some families lacks: the
    rule of AWS's SDK (sagemaker.serve, model_builder_servers.py).
    """
    family = instance_type.split(".")[1]
    if family in table.ami_families:
        because = f"the image is on CUDA {runtime.cuda}, and the default AMI of {family} is older"
        return chosen(runtime.ami, "ami", because)
    because = f"not known to need another on {family}"
    return chosen(None, "ami", because, shown="SageMaker's default")
