"""``peagle token``: an API key for the OpenAI-compatible URL."""

from __future__ import annotations

import click

from peagle.aws.client import MAX_TOKEN_SECONDS
from peagle.cli import parameter_types
from peagle.cli.account import Account, cloud_options, complete_name, find_endpoint
from peagle.cli.output.console import json_option, print_json
from peagle.cli.project import ProjectCommand, endpoint_argument
from peagle.errors import UserError


@click.command(
    cls=ProjectCommand, epilog='Example: export OPENAI_API_KEY="$(peagle token peagle-tiny)"'
)
@endpoint_argument(complete_name)
@cloud_options
@click.option(
    "--duration",
    callback=parameter_types.duration,
    default="12h",
    show_default=True,
    help="Validity: 30m, 2h; 12h at most.",
)
@json_option
def token(name: str, account: Account, region: str | None, duration: int, as_json: bool) -> None:
    """Print a bearer token for OpenAI clients of the endpoint NAME.

    The token is computed from your credentials without a call to AWS, is valid for every endpoint
    that you may invoke in the region, and needs sagemaker:CallWithBearerToken and
    sagemaker:InvokeEndpoint.
    """
    record, aws = find_endpoint(account, name, region)
    if not 0 < duration <= MAX_TOKEN_SECONDS:
        raise UserError("a token is valid for 1s to 12h", "choose a different --duration")
    key = aws.bearer_token(duration)
    if not as_json:
        return click.echo(key)
    has_copies = record is not None and record.current.served.copies is not None
    url = aws.openai_base_url(name, name if has_copies else "")
    return print_json({"token": key, "expires_in_seconds": duration, "openai_base_url": url})
