"""Warm starts on AWS: an endpoint that collects what its engine compiled, for others to start with.

The artefact (``peagle.warm.transfer``) goes into the folder ``warm/`` beside the weights, so that
whatever mounts them mounts it too: no request and no template changes.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing, translated
from peagle.aws.sagemaker import describe
from peagle.deploy.apply import Change, deploy
from peagle.deploy.context import DeploymentContext
from peagle.deploy.desired import DesiredState
from peagle.deploy.status import sandbox_engine
from peagle.errors import CloudError, EngineError, PeagleError, Refused
from peagle.planning.plan import Plan
from peagle.planning.runtime import check_name
from peagle.warm.transfer import IncompleteResponse, WarmArtifact, WarmReply, fetch
from peagle.weights.bucket import Bucket
from peagle.weights.layout import Place, place_of
from peagle_serve.contract import COLLECT, WARM_ATTRIBUTE, WARM_FOLDER, WARM_MODE_VARIABLE

COLLECTING_SUFFIX = "-warm"
"""So ends the name of the endpoint that collects."""

_RUNTIME = "sagemaker-runtime"
_EAGER = "SM_VLLM_ENFORCE_EAGER"


@dataclass(frozen=True)
class Stored:
    """An artefact in S3. ``others`` are those beside it, their sizes in bytes by key: every start
    downloads them as well. ``stand_in`` is what the sandbox ran instead."""

    artefact: WarmArtifact
    place: Place
    others: dict[str, int]
    stand_in: str | None = None

    @property
    def uri(self) -> str:
        """The packed file as ``s3://``."""
        return f"{self.place.folder(WARM_FOLDER)}{self.artefact.archive.name}"


def collecting(plan: Plan) -> Plan:
    """The plan of the endpoint that collects: the same engine, once, under another name.

    Raises Refused for a plan whose engine compiles nothing.
    """
    if plan.environment.get(_EAGER, "false").strip().lower() != "false":
        raise Refused(
            f"{plan.pair} runs eagerly ({_EAGER}), so there is nothing to collect",
            "every start of it is cold",
        )
    each = plan.price_per_hour_usd
    return plan.model_copy(
        update={
            "name": check_name(f"{plan.name}{COLLECTING_SUFFIX}"),
            # Two instances would answer in turn, each with an artefact of its own.
            "instance_count": 1,
            "price_per_hour_usd": None if each is None else round(each / plan.instance_count, 4),
            "environment": {**plan.environment, WARM_MODE_VARIABLE: COLLECT},
        }
    )


def place_beside_weights(plan: Plan) -> Place:
    """The prefix that becomes /opt/ml/model. Raises Refused unless all weights lie below it."""
    drafter = plan.drafter.weights if plan.drafter else None
    kinds = {weights.kind for weights in (plan.target.weights, drafter) if weights}
    if kinds == {"s3"} and not plan.mounts:
        raise Refused(
            f"a warm start comes with mounted weights, and those of {plan.pair} are streamed",
            "plan with --weights-by mount",
        )
    if kinds != {"s3"} or [mount.channel for mount in plan.mounts] != [None]:
        raise Refused(
            f"a warm start lies beside the weights, and those of {plan.pair} are not below one "
            "prefix in S3",
            f"copy them first: peagle weights sync {plan.pair} s3://BUCKET/PREFIX, which says "
            "what --model-source and --drafter to give",
        )
    return place_of(plan.mounts[0].s3_uri)


def check_writable(aws: Aws, place: Place) -> None:
    """Raise AccessDenied, before anything costs, if the artefact could not be written there."""
    bucket, key = Bucket(aws, place.bucket), place.key(WARM_FOLDER, "probe")
    try:
        # Begun and thrown away: it needs what the upload will need, and leaves nothing.
        bucket.abort(key, bucket.begin(key, {}))
    except AccessDenied as error:
        raise AccessDenied(
            f"the artefact could not be written to {place.folder(WARM_FOLDER)}: {error.message}",
            error.fix, error.code,
        ) from error  # fmt: skip


def collect(
    context: DeploymentContext, change: Change, desired: DesiredState, place: Place, folder: Path
) -> Stored:
    """Deploy and prove ``desired``, fetch its artefact into ``folder``, and store it at ``place``.

    What was deployed is the caller's to remove, however this ends. Raises what deploying and
    fetching raise.
    """
    deploy(context, change, desired)
    name = context.record.name
    stand_in = sandbox_engine(context.aws, describe(context.aws, name)).stand_in
    context.say("Packing", "what the engine compiled")
    artefact = fetch(
        lambda body: _ask(context.aws, name, body),
        folder,
        lambda done, size: _tell(context, "Fetching", done, size),
        context.clock.sleep,
    )
    _store(context, artefact, place)
    return Stored(artefact, place, _others(context.aws, artefact, place), stand_in)


def _ask(aws: Aws, endpoint: str, body: dict[str, Any]) -> WarmReply:
    """One question to the container's route, as ``peagle.warm.transfer`` wants it answered."""
    try:
        answer = aws.call(
            _RUNTIME,
            "invoke_endpoint",
            EndpointName=endpoint,
            Body=json.dumps(body).encode(),
            ContentType="application/json",
            Accept="*/*",
            CustomAttributes=WARM_ATTRIBUTE,
        )
        with translated(_RUNTIME, aws.region):
            return WarmReply(200, answer["Body"].read())
    except (AccessDenied, Missing):
        raise
    except PeagleError as error:
        said = _of_container(error)
        if said is not None:
            return said
        if isinstance(error, (CloudError, EngineError)):
            raise IncompleteResponse(error) from error
        raise


def _of_container(error: PeagleError) -> WarmReply | None:
    """The container's own refusal within SageMaker's."""
    response = getattr(error.__cause__, "response", None) or {}
    if response.get("Error", {}).get("Code") != "ModelError":
        return None
    status = int(response.get("OriginalStatusCode") or 500)
    return WarmReply(status, str(response.get("OriginalMessage", "")).encode())


def _store(context: DeploymentContext, artefact: WarmArtifact, place: Place) -> None:
    """The old manifest goes first and the new one comes last: what has none is no artefact, so
    wherever this is cut off, no start takes a new archive for the old one."""
    done = 0
    _forget_old(Bucket(context.aws, place.bucket), place.key(WARM_FOLDER, artefact.manifest.name))

    def advance(count: int) -> None:
        nonlocal done
        done += count
        _tell(context, "Storing", min(done, artefact.size), artefact.size)

    for path in (artefact.archive, artefact.manifest):
        key = place.key(WARM_FOLDER, path.name)
        context.aws.upload(path, place.bucket, key, {}, advance)


def _forget_old(bucket: Bucket, manifest: str) -> None:
    if manifest not in bucket.sizes(manifest):
        return  # In a bucket with versions, deleting what is not there leaves a marker.
    # Whoever may write and not delete has paid for the artefact all the same, and replaces it.
    with suppress(AccessDenied):
        bucket.delete(manifest)


def _others(aws: Aws, artefact: WarmArtifact, place: Place) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, size in Bucket(aws, place.bucket).sizes(place.key(WARM_FOLDER, "")).items():
        key = place.artefact(name)
        if key not in (None, artefact.key):
            found[str(key)] = found.get(str(key), 0) + size
    return found


def _tell(context: DeploymentContext, what: str, done: int, size: int) -> None:
    context.say(what, f"{done / 1e6:.1f} of {size / 1e6:.1f} MB", lasting=done < size)
