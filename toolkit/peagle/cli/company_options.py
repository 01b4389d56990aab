"""Options of ``plan``, ``deploy`` and others about what a company prescribes for its account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from peagle import api
from peagle.planning.company import Company


class _Ids(click.ParamType):  # type: ignore[type-arg]
    """Ids such as ``subnet-1,subnet-2``: each once, in the order given."""

    name = "text"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The ids; planning checks them."""
        words = value if isinstance(value, tuple) else str(value).split(",")
        return tuple(filter(None, (word.strip() for word in words)))


class _Tag(click.ParamType):  # type: ignore[type-arg]
    """``KEY=VALUE``. A variable holds several with commas, which no tag has."""

    name = "text"
    envvar_list_splitter = ","

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)


_IDS = _Ids()


kms_key_option = click.option(
    "--kms-key",
    metavar="KEY",
    envvar="PEAGLE_KMS_KEY",
    help="KMS key (ARN, id or alias) of storage volumes and uploads.  [env: PEAGLE_KMS_KEY]",
)
"""``--kms-key``."""


def tag_option(flag: str = "--tag") -> Callable[..., Any]:
    """``--tag KEY=VALUE``: ``tags``, by key."""
    return click.option(
        flag,
        "tags",
        type=_Tag(),
        metavar="KEY=VALUE",
        multiple=True,
        envvar="PEAGLE_TAGS",
        callback=lambda _, __, given: api.parse_tags(given),
        help="A tag on everything that is created. Repeatable.  [env: PEAGLE_TAGS, with commas]",
    )


def company_options(tag_flag: str = "--tag") -> tuple[Callable[..., Any], ...]:
    """The options, each with a variable of the environment for all commands of a company."""
    return (
        click.option(
            "--subnets",
            type=_IDS,
            metavar="ID,...",
            envvar="PEAGLE_SUBNETS",
            help="Subnets of your VPC that containers are attached to, with commas.  "
            "[env: PEAGLE_SUBNETS]",
        ),
        click.option(
            "--security-groups",
            type=_IDS,
            metavar="ID,...",
            envvar="PEAGLE_SECURITY_GROUPS",
            help="Their security groups, with commas.  [env: PEAGLE_SECURITY_GROUPS]",
        ),
        click.option(
            "--network-isolation",
            is_flag=True,
            envvar="PEAGLE_NETWORK_ISOLATION",
            help="Containers without any network; weights come from S3 or the image.",
        ),
        kms_key_option,
        tag_option(tag_flag),
        click.option(
            "--name-prefix",
            metavar="TEXT",
            envvar="PEAGLE_NAME_PREFIX",
            help="Beginning of the names of what is created.  "
            "[env: PEAGLE_NAME_PREFIX; default: peagle-]",
        ),
        click.option(
            "--permissions-boundary",
            metavar="ARN",
            envvar="PEAGLE_PERMISSIONS_BOUNDARY",
            help="Policy that bounds roles that are created.  [env: PEAGLE_PERMISSIONS_BOUNDARY]",
        ),
    )


def typed_company_option(option: str, value: Any) -> tuple[str, ...]:
    """The option as on a command line; empty for one that is not of these."""
    if option not in Company.model_fields:
        return ()
    return tuple(api.company_arguments(Company(**{option: value})))
