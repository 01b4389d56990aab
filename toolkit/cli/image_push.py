"""Pushing an image of this machine, and the command that then deploys it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from toolkit.aws import ecr
from toolkit.aws.pushed import Pushed, remember
from toolkit.checks.images import in_ecr
from toolkit.cli.cloud import DEFAULT_REGION, Account
from toolkit.cli.console import say
from toolkit.cli.waiting import StatusLine
from toolkit.errors import PeagleError, Unsupported
from toolkit.images import Docker, Image, Login, push
from toolkit.images.build import named_by_content
from toolkit.planning import Plan
from toolkit.planning.own_heads import is_folder, is_s3
from toolkit.rendering.image_names import parse_tag, pinned, without_tag
from toolkit.rendering.readme import pair_words


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
    pair = shlex.join(pair_words(plan))
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
        remember(aws, where, Pushed(image.pair, image.baked))
    return pushed


def words_for(pair: str) -> list[str]:
    """PAIR, as far as the name of an image's pair can be typed."""
    head = pair.partition("+")[2]
    return ["PAIR" if is_s3(head) or is_folder(head) else pair]


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
