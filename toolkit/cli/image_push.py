"""How images come into a registry: pushed from here, or built on AWS."""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolkit.aws import codebuild, ecr
from toolkit.cli.cloud import Account
from toolkit.cli.console import say
from toolkit.cli.waiting import StatusLine
from toolkit.errors import Unsupported
from toolkit.images import Docker, Login, image_name, push
from toolkit.images.build import context
from toolkit.planning import Plan
from toolkit.rendering.image import Recipe, context_digest

_ECR = re.compile(r"\d{12}\.dkr\.ecr\.(?P<region>[\w-]+)\.[\w.]+")


def logins_for(base: str, region: str, account: Account) -> Sequence[Login]:
    """What Docker needs to fetch the base: a login for a registry in ECR, else nothing.

    Where the base is on this machine already, nobody is asked.
    """
    host = base.partition("/")[0]
    found = _ECR.fullmatch(host)
    if found is None or Docker().inspect("image", base):
        return ()
    return (ecr.login(account.connect(found["region"]), host),)


def push_image(
    docker: Docker, name: str, registry: str | None, region: str, account: Account
) -> str:
    """Push to the repository of that name in ECR, or in ``registry``; the address with digest.

    With the sandbox, whose ECR stores no image, a registry must be named: the repository is made
    and the login fetched as on AWS, and both are used there.
    """
    repository, _, tag = name.rpartition(":")
    if registry and not account.sandbox:
        return _push(docker, name, f"{registry}/{name}", ())
    aws = account.connect(region)
    uri = ecr.ensure_repository(aws, repository)
    if account.sandbox and not registry:
        raise Unsupported(
            f"{uri} is in the sandbox, whose ECR keeps no images",
            "name a registry of this machine with --registry",
        )
    host = registry or uri.partition("/")[0]
    return _push(docker, name, f"{host}/{repository}:{tag}", (ecr.login(aws, host),))


def build_there(plan: Plan, recipe: Recipe, tag: str | None, account: Account) -> str:
    """Build and push on AWS; the address with digest."""
    repository, _, own = (tag or image_name(plan, recipe)).rpartition(":")
    host = recipe.base.partition("/")[0]
    order = codebuild.BuildOrder(
        repository=repository,
        tag=own,
        base_registry=host if _ECR.fullmatch(host) else "",
        context=context(plan, recipe),
        digest=context_digest(plan, recipe),
    )
    found = codebuild.build(account.connect(plan.region), order, say)
    if found.digest is None:
        return found.address
    return f"{found.address.rpartition(':')[0]}@{found.digest}"


def _push(docker: Docker, name: str, address: str, logins: Sequence[Login]) -> str:
    with StatusLine() as status:
        return push(
            docker, name, address, logins, lambda line: status.show(f"pushing {address}", line)
        )
