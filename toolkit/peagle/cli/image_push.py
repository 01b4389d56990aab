"""From what the user asked for to a recipe of an image.

Pushing an image of this machine, and the command that then deploys it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peagle.aws import ecr
from peagle.aws.image_records import PushedImage, record_push
from peagle.catalog.schema import Catalog, Target
from peagle.checkpoints.locations import is_folder
from peagle.checks.facts import in_ecr
from peagle.cli.account import DEFAULT_REGION, Account
from peagle.cli.output.console import say
from peagle.cli.output.progress import StatusLine
from peagle.engine.install import engine_packages
from peagle.errors import PeagleError, Unsupported
from peagle.findings import Finding
from peagle.images import Docker, Image, Login, engine_image, push, with_digest
from peagle.images.bake import baked
from peagle.images.build import for_gpus, named_by_content
from peagle.images.context import source_revision
from peagle.planning import Plan
from peagle.planning.runtime import IMAGE_WITHOUT_COUNTERS
from peagle.render.image import Baked, Recipe, RuntimeKind
from peagle.render.image_names import base_of, parse_tag, pinned, split_image, without_tag
from peagle.render.requests import pair_arguments
from peagle.s3uri import is_s3_uri

Progress = Callable[[str], object]

_ABOUT_PLACE = frozenset({"image-not-in-ecr", "image-in-another-region"})
"""Findings about where SageMaker would take an image from."""


@dataclass(frozen=True)
class Request:
    """An image that somebody wants: ``tag`` and ``base`` where they were named.

    Raises UserError at once for names that Docker or a registry would refuse later.
    """

    plan: Plan
    catalog: Catalog
    runtime: RuntimeKind
    tag: str | None = None
    base: str | None = None
    bake_weights: bool = False

    def __post_init__(self) -> None:
        if self.base is not None:
            split_image(self.base)
        if self.tag is not None:
            parse_tag(self.tag)

    @property
    def target(self) -> Target | None:
        """The catalogue's entry for the plan's target."""
        return self.catalog.targets.get(self.plan.target.id)

    @property
    def below(self) -> str:
        """The image that ours will lie on, or for a CPU the engine below it."""
        if self.base is not None:
            return self.base
        if self.runtime == "gpu":
            return base_of(self.plan, self.catalog.runtimes)
        return f"python:{engine_packages(self.plan.runtime.vllm).python}-slim-bookworm"


def findings_of_own(plan: Plan) -> tuple[Finding, ...]:
    """The plan's findings but the one about AWS's plain image, where ours takes its place."""
    return tuple(one for one in plan.findings if one.code != IMAGE_WITHOUT_COUNTERS)


def findings_for_building(plan: Plan) -> tuple[Finding, ...]:
    """What somebody should know who builds an image: no notes about serving it."""
    return tuple(one for one in findings_of_own(plan) if one.level != "note")


def findings_here(plan: Plan, engine_kind: str) -> tuple[Finding, ...]:
    """The findings of a plan that is run on this machine: a container's image may lie here."""
    found = findings_of_own(plan)
    if engine_kind != "docker":
        return found
    return tuple(one for one in found if one.code not in _ABOUT_PLACE)


def gpu_recipe(docker: Docker, request: Request, progress: Progress) -> Recipe:
    """FROM the base, by its digest where one is to be had; the base is fetched for that."""
    base = with_digest(for_gpus(docker), request.below, progress)
    return Recipe("gpu", base, request.target, source_revision(), weights_of(request, progress))


def cpu_recipe(docker: Docker, request: Request, progress: Progress) -> Recipe:
    """FROM the CPU engine on the base, which is made first unless it is there."""
    packages = engine_packages(request.plan.runtime.vllm)
    engine = engine_image(docker, request.below, packages, progress)
    return Recipe("cpu", engine, request.target, source_revision(), weights_of(request, progress))


def weights_of(request: Request, progress: Progress) -> tuple[Baked, ...]:
    """What is baked in, if anything is to be."""
    return baked(request.plan, progress) if request.bake_weights else ()


def logins_for(docker: Docker, base: str, account: Account) -> Sequence[Login]:
    """What Docker needs to fetch the base: a login for a registry in ECR, else nothing.

    Where the base is on this machine already, nobody is asked.
    """
    found = in_ecr(base)
    if found is None or docker.inspect("image", base):
        return ()
    return (ecr.login(account.connect(found.region), base.partition("/")[0]),)


def check_pushing(account: Account, region: str) -> None:
    """Raise, before an image is built for many minutes, what would keep it from being pushed to
    ECR: Unsupported for the sandbox, and what is wrong with the credentials."""
    if account.sandbox:
        raise Unsupported(
            "the sandbox's ECR keeps no images, so there is nowhere to push to",
            f"leave out --push, then: {_elsewhere('NAME')}",
        )
    # Who we are is asked of AWS here, so credentials that are missing or too old are found out.
    say(f"Will be pushed to account {account.connect(region).account}, {region}")


def push_built(docker: Docker, image: Image, region: str, account: Account) -> str:
    """Push what was just built to ECR; where that fails, say that it is built all the same."""
    try:
        return push_image(docker, image, None, region, account)
    except (PeagleError, KeyboardInterrupt):
        say(f"{image.name} is built. To push it: {_push_command(image, region, account)}")
        raise


def next_command(plan: Plan, image: Image, account: Account) -> str:
    """What to do with an image that was built and not pushed: a CPU's runs here, and one for GPUs
    is pushed."""
    if image.runtime == "gpu" and account.sandbox:
        return _elsewhere(image.name)
    if image.runtime == "gpu":
        return _push_command(image, plan.region, account)
    pair = shlex.join(pair_arguments(plan))
    return f"peagle local up {pair} --engine docker --image {image.name}"


def _elsewhere(name: str) -> str:
    return f"peagle image push {name} --registry HOST"


def _push_command(image: Image, region: str, account: Account) -> str:
    where = f" --region {region}" if region != DEFAULT_REGION else ""
    return f"peagle image push {image.name}{where}{account.option}"


def push_image(
    docker: Docker, image: Image, registry: str | None, region: str, account: Account
) -> str:
    """Push to the repository of that name in ECR, or in ``registry``; the address with digest.

    An image that is named after its content and is there already is not pushed again: built by
    somebody else it is the same, and ECR would refuse it. With the sandbox, whose ECR stores no
    image, a registry must be named: the repository is made and the login fetched as on AWS, and
    both are used there. What went to ECR is remembered, for deploy to compare with its plan.
    """
    repository, tag = parse_tag(image.name)
    if registry and not account.sandbox:
        return _push(docker, image.name, f"{registry}/{image.name}", ())
    aws = account.connect(region)
    uri = ecr.ensure_repository(aws, repository)
    host = registry or uri.partition("/")[0]
    address = f"{host}/{repository}:{tag}"
    digest = None if registry else ecr.image_digest(aws, repository, tag)
    if digest and named_by_content(image):
        say(f"{address} is there already")
        pushed = pinned(without_tag(address), digest)
    elif account.sandbox and not registry:
        raise Unsupported(
            f"{uri} is in the sandbox, whose ECR keeps no images",
            f"name a registry of this machine: {_elsewhere(image.name)}",
        )
    else:
        pushed = _push(docker, image.name, address, (ecr.login(aws, host),))
    for where in (address, pushed):
        record_push(aws, where, PushedImage(image.pair, image.baked))
    return pushed


def words_for(pair: str) -> list[str]:
    """PAIR, as far as the name of an image's pair can be typed."""
    head = pair.partition("+")[2]
    return ["PAIR" if is_s3_uri(head) or is_folder(head) else pair]


def deploy_command(
    pair: list[str], address: str, baked: bool, region: str, account: Account
) -> str | None:
    """The command that deploys what was pushed; ``pair`` are the words for it. ``None`` where it
    was pushed to a registry from which SageMaker takes nothing."""
    if in_ecr(address) is None:
        return None
    words = ["peagle", "deploy", *pair, "--image", address]
    words += ["--baked-weights"] if baked else []
    words += ["--region", region] if region != DEFAULT_REGION else []
    return shlex.join(words) + account.option


def _push(docker: Docker, name: str, address: str, logins: Sequence[Login]) -> str:
    with StatusLine() as status:
        return push(
            docker, name, address, logins, lambda line: status.show(f"pushing {address}", line)
        )
