"""What the commands of ``peagle weights`` have in common.

Which endpoints of this machine's deployment records start from weights at a prefix.

What a `peagle weights sync` that ends early leaves, and how to go on.

``peagle weights remove``: what a sync brought to a prefix, or one warm start beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

import click

from peagle.aws.client import Aws
from peagle.catalog.loading import load_storage
from peagle.cli.account import DEFAULT_REGION, Account, account_options
from peagle.cli.context import PeagleCommand
from peagle.cli.options import catalog_of
from peagle.cli.output.console import json_option, print_json, say
from peagle.cli.output.weights import fix_in_account, show_look, size_words, warm_words
from peagle.deploy import state as records
from peagle.deploy.state import Deployment, Revision
from peagle.errors import NotFound, PeagleError, Refused, UserError
from peagle.findings import Finding
from peagle.planning.plan import MODEL_BUCKET
from peagle.weights import Moment, Place, place_of
from peagle.weights.inspect import Look, look, remove, remove_warm

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


REPLACING = frozenset({"other-weights-there", "objects-are-replaced"})
"""Findings of a copy that puts other weights where some lie; each says at which prefix."""


def refuse_used(place: Place, scope: str, account: Account) -> None:
    """Raises Refused when an endpoint of that scope starts from what lies there: its next instance
    would not. Endpoints that other machines deployed are not known here."""
    _refuse({place.uri}, scope, account, "without it no further instance starts", "")


def refuse_replaced(found: Iterable[Finding], scope: str, account: Account) -> None:
    """The same where a copy would replace what lies there: the next instance would start with
    other weights than those that run."""
    replaced = {finding.where for finding in found if finding.code in REPLACING}
    then = "its next instance would start with the other weights"
    _refuse(replaced, scope, account, then, "name another prefix, or ")


def _refuse(uris: Collection[str], scope: str, account: Account, then: str, instead: str) -> None:
    names = [r.name for r in records.all_records(scope) if _starts_from(r, uris)]
    if not names:
        return
    several = len(names) > 1
    raise Refused(
        f"the endpoint{'s' if several else ''} {', '.join(names)} start{'' if several else 's'} "
        f"from {', '.join(sorted(uris))}: {then}",
        f"{instead}remove {'them' if several else 'it'} first: "
        f"peagle destroy {names[0]}{account.option}, or add --even-if-used",
    )


def _starts_from(record: Deployment, uris: Collection[str]) -> bool:
    """Whether it has an endpoint that mounts or streams one of the prefixes, a folder of it, or
    one that holds it."""
    if not record.of_type("Endpoint"):
        return False
    revisions = (one for one in (record.serving, record.pending) if one is not None)
    read = [uri for one in revisions for uri in _read(one)]
    return any(one.startswith(uri) or uri.startswith(one) for one in read for uri in uris)


def _read(revision: Revision) -> Iterator[str]:
    """The prefixes that its plan has mounted or streamed, each with its slash."""
    plan = revision.plan
    for mount in plan.mounts:
        uri = mount.s3_uri.replace(MODEL_BUCKET, revision.bucket or MODEL_BUCKET)
        yield f"{uri.rstrip('/')}/"
    for weights in (plan.target.weights, plan.drafter.weights if plan.drafter else None):
        if weights is not None and weights.streamed:
            yield f"{weights.location.rstrip('/')}/"


@dataclass
class Left:
    """Used as a context around a sync: an interrupt, and once it ``copies`` an error too, ends
    with what is left. ``last`` is how far it was.

    ``go_on`` is the command as it was given, ``back`` the one that takes it all back.
    """

    place: Place
    go_on: str
    back: str
    copies: bool = False
    last: Moment | None = None

    def __enter__(self) -> Left:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failed = self.copies and isinstance(error, PeagleError) and not isinstance(error, Refused)
        if failed or isinstance(error, KeyboardInterrupt):
            self._say()

    def _say(self) -> None:
        if self.last is None:
            say(f"No file was copied to {self.place.uri} by this run. Go on: {self.go_on}")
            return
        done, total = size_words(self.last.done), size_words(self.last.total)
        say(f"Left at {self.place.uri}: {done} of {total}. Parts that are there are kept, and cost "
            "as storage does.")  # fmt: skip
        say(f"Go on where it stopped: {self.go_on}")
        say(f"Remove it: {self.back}")


@click.command(
    "remove",
    cls=PeagleCommand,
    epilog="Examples: peagle weights remove s3://my-models/tiny    "
    "peagle weights remove s3://my-models/tiny --warm KEY",
)
@click.argument("place", metavar="S3://BUCKET/PREFIX")
@region_option
@account_options
@take_over_option
@click.option("--warm", "key", metavar="KEY", help="Only the warm start of that key.")
@even_if_used_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_context
def remove_command(
    ctx: click.Context,
    place: str,
    region: str,
    account: Account,
    take_over: bool,
    key: str | None,
    even_if_used: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove what `peagle weights sync` brought to a prefix, half-uploaded files included, and the
    warm starts beside it; or with --warm one warm start and nothing else.

    Other objects stay where they are. Refused while an endpoint that was deployed from this machine
    starts from these weights; without a warm start it starts as well, and takes longer.
    """
    if key and (take_over or even_if_used):
        raise UserError("--take-over and --even-if-used are for the weights, which --warm leaves",
                        "leave them out")  # fmt: skip
    aws = account.connect(region)
    found = look_there(aws, place, account)
    if key:
        return _remove_warm(aws, found, key, yes, as_json)
    uri = found.place.uri
    if not (found.manifest or found.warm):
        raise NotFound(f"`peagle weights sync` brought nothing to {uri}",
                       f"see it: peagle weights list {uri}{account.option}")  # fmt: skip
    if not even_if_used:
        refuse_used(found.place, aws.scope, account)
    if not as_json:
        show_look(found, load_storage(catalog_of(ctx)).price_in(region))
    if not yes:
        ask(f"Remove this from {uri}?", "not removed")
    remove(aws, found, take_over)
    return _tell_removed(found, as_json)


def _remove_warm(aws: Aws, found: Look, key: str, yes: bool, as_json: bool) -> None:
    one, uri = found.artefact(key), found.place.uri
    if not as_json:
        click.echo(warm_words(one))
    if not yes:
        ask(f"Remove this warm start from {uri}?", "not removed")
    remove_warm(aws, found.place, one)
    if as_json:
        print_json({"uri": uri, "folders": [], "warm": [key], "bytes": one.size})
    else:
        say(f"Removed the warm start {key} from {uri}, {size_words(one.size)}: starts that took it "
            "compile anew.")  # fmt: skip


def _tell_removed(found: Look, as_json: bool) -> None:
    uri, warm, left = found.place.uri, [one.key for one in found.warm], len(found.others)
    if as_json:
        size = found.size - sum(found.others.values())
        print_json({"uri": uri, "folders": list(found.files), "warm": warm, "bytes": size})
        return
    count = len(warm)
    also = f", {count} warm start{'s' if count > 1 else ''} with it" if count else ""
    say(f"Removed from {uri}{also}; {left} other objects are left there.")
