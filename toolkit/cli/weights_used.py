"""Which endpoints of this machine's deployment records start from weights at a prefix."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from toolkit.aws import records
from toolkit.aws.records import Deployment, Generation
from toolkit.aws.weights import Place
from toolkit.cli.cloud import Account
from toolkit.errors import Refused
from toolkit.findings import Finding
from toolkit.planning.models import MODEL_BUCKET

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
    generations = (one for one in (record.serving, record.wanted) if one is not None)
    read = [uri for one in generations for uri in _read(one)]
    return any(one.startswith(uri) or uri.startswith(one) for one in read for uri in uris)


def _read(generation: Generation) -> Iterator[str]:
    """The prefixes that its plan has mounted or streamed, each with its slash."""
    plan = generation.plan
    for mount in plan.mounts:
        uri = mount.s3_uri.replace(MODEL_BUCKET, generation.bucket or MODEL_BUCKET)
        yield f"{uri.rstrip('/')}/"
    for weights in (plan.target.weights, plan.drafter.weights if plan.drafter else None):
        if weights is not None and weights.streamed:
            yield f"{weights.location.rstrip('/')}/"
