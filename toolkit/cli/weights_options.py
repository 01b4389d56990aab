"""What the commands of ``peagle weights`` have in common."""

from __future__ import annotations

import sys

import click

from toolkit.aws.session import Aws
from toolkit.aws.weights import place_of
from toolkit.aws.weights.looking import Look, look
from toolkit.cli.cloud import DEFAULT_REGION, Account
from toolkit.cli.weights_words import fix_in_account
from toolkit.errors import NotFound, UserError

region_option = click.option(
    "--region",
    envvar=["AWS_REGION", "AWS_DEFAULT_REGION"],
    default=DEFAULT_REGION,
    help="Region of the bucket.  [env: AWS_REGION; default: us-east-1]",
)

take_over_option = click.option(
    "--take-over", is_flag=True, help="Although somebody else is at work there, who has died."
)

even_if_used_option = click.option(
    "--even-if-used", is_flag=True, help="Although an endpoint starts from them."
)


def look_there(aws: Aws, place: str, account: Account) -> Look:
    """What lies there. Raises NotFound, whose fix is a command that works in that account."""
    try:
        return look(aws, place_of(place))
    except NotFound as missing:
        missing.fix = fix_in_account(missing.fix, account)
        raise


def ask(question: str, refused: str) -> None:
    """Raises UserError, with the message ``refused``, unless somebody says yes."""
    if not sys.stdin.isatty():
        raise UserError("there is no terminal to ask on", "read the lines above, then add --yes")
    if not click.confirm(question, err=True):
        raise UserError(refused, "nothing was changed")
