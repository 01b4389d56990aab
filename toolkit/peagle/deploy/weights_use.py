"""Which endpoints that were deployed from this machine use the weights at an S3 prefix."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from peagle.deploy import state as records
from peagle.deploy.state import Deployment, Revision
from peagle.errors import Fix, Refused
from peagle.planning.plan import MODEL_BUCKET


def refuse_weights_in_use(
    uris: Collection[str], scope: str, consequence: str, alternative: str = ""
) -> None:
    """Raises Refused when an endpoint of ``scope`` mounts or streams one of the prefixes, a folder
    of it, or a prefix that contains it. Endpoints of other machines are not known.

    ``consequence`` tells what would happen, ``alternative`` what to do instead of removing them.
    """
    names = [each.name for each in records.all_records(scope) if _uses(each, uris)]
    if not names:
        return
    several = len(names) > 1
    sentence = f"remove {'them' if several else 'it'} first, or add --even-if-used"
    raise Refused(
        f"the endpoint{'s' if several else ''} {', '.join(names)} use{'' if several else 's'} "
        f"{', '.join(sorted(uris))}: {consequence}",
        Fix(f"{alternative}{sentence}".capitalize(), ("peagle", "destroy", names[0])),
        code="weights-in-use",
    )


def _uses(record: Deployment, uris: Collection[str]) -> bool:
    if not record.of_type("Endpoint"):
        return False
    revisions = (each for each in (record.serving, record.pending) if each is not None)
    used = [uri for each in revisions for uri in _prefixes(each)]
    return any(one.startswith(uri) or uri.startswith(one) for one in used for uri in uris)


def _prefixes(revision: Revision) -> Iterator[str]:
    """The prefixes that its plan mounts or streams, each with its slash."""
    plan = revision.plan
    for mount in plan.mounts:
        uri = mount.s3_uri.replace(MODEL_BUCKET, revision.bucket or MODEL_BUCKET)
        yield f"{uri.rstrip('/')}/"
    for weights in (plan.target.weights, plan.drafter.weights if plan.drafter else None):
        if weights is not None and weights.streamed:
            yield f"{weights.location.rstrip('/')}/"
