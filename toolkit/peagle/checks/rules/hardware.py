"""Instances, GPUs, host AMIs, images and regions."""

from __future__ import annotations

from peagle.case import Case, parse_family
from peagle.catalog.find import find_instance
from peagle.catalog.tables import HERE, Ami, ami_report, nearest_region, region_hint
from peagle.checks.facts import is_aws_image, parse_ecr_image, parse_tag_version
from peagle.checks.registry import Findings, error, note, rule, warning
from peagle.errors import Fix, NotFound
from peagle.vllm import versions
from peagle.vllm.gpus import needed_capability

_CHEAPEST = "leave --instance-type out to use the cheapest type that fits"
_REFRESH = ("peagle", "catalog", "refresh", "--prices")


@rule("region-unknown", about="hardware", vllm_notices="never")
def region_unknown(case: Case) -> Findings:
    """A region without AWS's vLLM images, where the image is not the user's own."""
    region, regions = case.options.region, case.runtimes.accounts
    if region is not None and region not in regions and case.options.image is None:
        message = f"{region!r} is not a region with AWS's vLLM images"
        yield error("region", message, region_hint(region, regions))


@rule("instance-unknown", about="hardware", vllm_notices="never")
def instance_unknown(case: Case) -> Findings:
    """An instance type that GPU endpoints cannot use."""
    if case.options.instance_type is None or case.instance is not None:
        return
    try:
        find_instance(case.instances, case.options.instance_type)
    except NotFound as missing:
        fix = Fix(missing.fix or _CHEAPEST, options=missing.options)
        yield error("instance_type", missing.message, fix)


@rule("instance-not-in-region", about="hardware", vllm_notices="never")
def instance_not_in_region(case: Case) -> Findings:
    """An instance type that endpoints in the region cannot have."""
    instance, region = case.instance, case.options.region
    if instance is None or region is None or instance.hosted_in(region) is not False:
        return
    near = nearest_region(region, instance.regions)
    message = f"SageMaker does not host endpoints on {instance.type} in {region}"
    fix = (
        f"use --region {near}, the nearest that does, or another --instance-type; if AWS has it "
        "there by now, get its price"
    )
    yield error("region", message, Fix(fix, _REFRESH))


@rule("instance-region-unknown", about="hardware", vllm_notices="never")
def instance_region_unknown(case: Case) -> Findings:
    """An instance type for which the catalogue does not say whether the region has it."""
    instance, region = case.instance, case.options.region
    if instance is None or region is None or region not in case.runtimes.accounts:
        return
    if instance.hosted_in(region) is None:
        message = f"whether {region} hosts endpoints on {instance.type} is unknown"
        yield note("region", message, Fix("ask AWS's price list", _REFRESH))


@rule("gpu-too-old", about="hardware", vllm_notices="at start")
def gpu_too_old(case: Case) -> Findings:
    """A GPU that does not support the target's dtype or quantization."""
    instance, target = case.instance, case.target
    if instance is None or case.on_cpu:
        return
    needed = needed_capability(target.dtype, target.quantization)
    if instance.capability < needed:
        message = (
            f"{target.title} needs a GPU with compute capability {needed / 10}, but the "
            f"{instance.gpu} of {instance.place} has {instance.capability / 10}"
        )
        is_here = instance.type == HERE
        fix = "choose a target that its GPUs support" if is_here else _CHEAPEST
        yield error("instance_type", message, fix)


def _find_ami(case: Case) -> Ami | None:
    """The case's host AMI, if the catalogue has it."""
    return next((ami for ami in case.runtimes.amis if ami.name == case.ami), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@rule("ami-unknown", about="hardware", vllm_notices="never")
def ami_unknown(case: Case) -> Findings:
    """A host AMI that SageMaker does not have for GPU endpoints."""
    ami_names, name = [ami.name for ami in case.runtimes.amis], case.runtime.ami
    if case.ami is not None and ami_names and case.ami not in ami_names:
        sentence = f"use --ami {name}, which the image of vLLM {case.runtime.vllm} needs"
        fix = Fix(sentence, options=("--ami", name))
        yield error("ami", f"SageMaker has no AMI {case.ami!r} for endpoints", fix)


@rule("ami-driver", about="hardware", vllm_notices="at start")
def ami_driver(case: Case) -> Findings:
    """A host AMI, or SageMaker's default one, whose driver is too old for the image's CUDA.

    A driver of the same CUDA major version works; with an older major version vLLM finds no
    GPU. The default AMI of some instance families has an older one than images with CUDA 13 need.
    """
    ami, cuda, message = _find_ami(case), case.runtime.cuda, ""
    family = parse_family(case.instance.type) if case.instance else ""
    if ami is not None and _numbers(ami.cuda)[0] < _numbers(cuda)[0]:
        message = f"{ami.name} has driver {ami.driver} for CUDA {ami.cuda}; the image uses {cuda}"
    elif case.ami is None and not case.on_cpu and family in case.runtimes.ami_families:
        message = f"the image uses CUDA {cuda}; the default AMI of {family} has an older driver"
    if message:
        name = case.runtime.ami
        fix = Fix(f"use --ami {name}", options=("--ami", name) if name else ())
        yield error("ami", message, fix)


@rule("ami-unverified", about="hardware", vllm_notices="never")
def ami_unverified(case: Case) -> Findings:
    """An instance family for which AWS's SDK has no rule about the host AMI."""
    if case.instance is None or case.on_cpu or not case.runtimes.amis:
        return
    family, amis = parse_family(case.instance.type), case.runtimes.amis
    if family in case.runtimes.ami_families:
        return
    newest = max(amis, key=lambda ami: _numbers(ami.driver)).name
    report, ami = ami_report(case.runtimes, family), _find_ami(case)
    other = "default" if ami is not None and ami.name == newest else newest
    fix = Fix(f"if vLLM finds no GPU, try --ami {other}", options=("--ami", other))
    if report is None:
        yield warning("ami", f"nothing is known about the AMI that {family} needs", fix)
        return
    message, oldest = f"{family}: {report.says} ({report.source})", report.driver
    if oldest is None or (ami is not None and _numbers(ami.driver) >= _numbers(oldest)):
        yield note("ami", message, fix)
    else:
        sentence = "use another instance family, or an AMI with that driver"
        yield warning("ami", f"{message}: {oldest}", sentence)


@rule("image-not-in-ecr", about="hardware", vllm_notices="never")
def image_not_in_ecr(case: Case) -> Findings:
    """An image outside ECR, from which SageMaker cannot pull."""
    if case.options.image is not None and parse_ecr_image(case.options.image) is None:
        message = f"SageMaker pulls images from ECR only; {case.options.image} is not in ECR"
        fix = "push the image to ECR and pass the address that this command prints with --image"
        yield error("image", message, Fix(fix, ("peagle", "image", "push", "NAME:TAG")))


@rule("image-not-in-region", about="hardware", vllm_notices="never")
def image_not_in_region(case: Case) -> Findings:
    """An image that is not in the endpoint's region: AWS's of this vLLM version, or an own one."""
    runtime, region, image = case.runtime, case.options.region, parse_ecr_image(case.options.image)
    if region is None:
        return
    if image is not None and image.region != region:
        message = f"the image is in {image.region}, the endpoint in {region}"
        sentence = f"push it to ECR in {region}, or use --region {image.region}"
        yield error("image", message, Fix(sentence, options=("--region", image.region)))
    if case.options.image is not None or region not in case.runtimes.accounts:
        return
    if not runtime.regions or region in runtime.regions:
        return
    others = [r.vllm for r in case.runtimes.runtimes if not r.regions or region in r.regions]
    fix = Fix("use another --region, or --image")
    if others:
        fix = Fix(f"use --vllm {others[-1]}, or --image", options=("--vllm", others[-1]))
    yield error("region", f"AWS has no image of vLLM {runtime.vllm} in {region}", fix)


@rule("image-by-tag", about="hardware", vllm_notices="never")
def image_by_tag(case: Case) -> Findings:
    """An image that is named by its tag, not by its digest.

    Anyone who may push to the repository can move the tag: the next start, or the next instance
    of the same endpoint, may run a different image from the one that was proved.
    """
    image = parse_ecr_image(case.options.image)
    if image is None or image.digest is not None:
        return
    if is_aws_image(case.options.image, case.runtimes):
        message = (
            "the catalogue has no digest of AWS's image, so the plan names a tag, which can move"
        )
        command = ("peagle", "catalog", "refresh", "--digests", "--region", image.region)
        yield note("image", message, Fix("fetch the digests", command))
    else:
        message = f"{case.options.image} is named by its tag, which can move"
        yield note("image", message, "use the address with its digest, as a push prints it")


@rule("image-version", about="hardware", vllm_notices="never")
def image_version(case: Case) -> Findings:
    """An image whose vLLM version differs from the plan's."""
    tagged, vllm = parse_tag_version(case.options.image or ""), case.runtime.vllm
    if tagged is not None and versions.compare(tagged, vllm):
        message = f"the image is tagged for vLLM {tagged}, but the plan is for {vllm}"
        sentence = f"add --vllm {tagged}, or use another image"
        yield error("image", message, Fix(sentence, options=("--vllm", tagged)))
