"""Which endpoints of this machine's deployment records start from weights at a prefix."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.aws import records
from toolkit.aws.records import Deployment, Generation
from toolkit.aws.weights import Place
from toolkit.cli.cloud import Account
from toolkit.errors import Refused
from toolkit.planning.models import MODEL_BUCKET


def refuse_used(place: Place, scope: str, account: Account) -> None:
    """Raises Refused when an endpoint of that scope starts from what lies there: its next instance
    would not. Endpoints that other machines deployed are not known here."""
    names = [r.name for r in records.all_records(scope) if _starts_from(r, place)]
    if not names:
        return
    several = len(names) > 1
    raise Refused(
        f"the endpoint{'s' if several else ''} {', '.join(names)} start{'' if several else 's'} "
        f"from {place.uri}: without it no further instance starts",
        f"remove {'them' if several else 'it'} first: peagle destroy {names[0]}{account.option}, "
        "or add --even-if-used",
    )


def _starts_from(record: Deployment, place: Place) -> bool:
    """Whether it has an endpoint that mounts or streams the prefix, a folder of it, or one that
    holds it."""
    if not record.of_type("Endpoint"):
        return False
    generations = (one for one in (record.serving, record.wanted) if one is not None)
    read = (uri for one in generations for uri in _read(one))
    return any(uri.startswith(place.uri) or place.uri.startswith(uri) for uri in read)


def _read(generation: Generation) -> Iterator[str]:
    """The prefixes that its plan has mounted or streamed, each with its slash."""
    plan = generation.plan
    for mount in plan.mounts:
        uri = mount.s3_uri.replace(MODEL_BUCKET, generation.bucket or MODEL_BUCKET)
        yield f"{uri.rstrip('/')}/"
    for weights in (plan.target.weights, plan.drafter.weights if plan.drafter else None):
        if weights is not None and weights.streamed:
            yield f"{weights.location.rstrip('/')}/"
