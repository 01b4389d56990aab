"""Local folders of weights: where they are uploaded to, and the hash of their files."""

from __future__ import annotations

from pathlib import PurePath

from peagle.planning.plan import MODEL_BUCKET, Plan, Weights
from peagle.s3uri import S3Uri
from peagle_serve.contract import MODEL_FOLDER

UPLOAD_FOLDER = "peagle-toolkit/"
"""Prefix of uploaded weights in a bucket; one folder per endpoint and its weights is below it."""


def upload_prefix(name: str) -> str:
    """Where directories of the endpoint ``name`` are uploaded: an ``s3://`` prefix."""
    return str(S3Uri(MODEL_BUCKET, f"{UPLOAD_FOLDER}{name}/"))


def with_upload_destination(weights: Weights, folder: str, name: str) -> Weights:
    """A directory with its upload destination; other weights unchanged."""
    if weights.kind != "directory":
        return weights
    to = {"s3_uri": f"{upload_prefix(name)}{folder}/", "engine_path": f"{MODEL_FOLDER}/{folder}"}
    return weights.model_copy(update=to)


def local_weights(plan: Plan) -> tuple[Weights, ...]:
    """The plan's weights in folders of this machine, which are uploaded."""
    drafter = plan.drafter.weights if plan.drafter else None
    return tuple(w for w in (plan.target.weights, drafter) if w and w.kind == "directory")


def portable_pair(pair: str) -> str:
    """The pair with the name of a head's folder in place of its path, which differs between
    machines."""
    target, plus, drafter = pair.partition("+")
    return f"{target}{plus}{PurePath(drafter).name if drafter.startswith('/') else drafter}"


def with_contents(plan: Plan, contents: str) -> Plan:
    """The plan with the hash of its folders in their destination in S3, and so in the model's
    identity in every format: other weights are another model, and those that serve stay."""
    old = upload_prefix(plan.name)
    new = f"{old.removesuffix('/')}.{contents}/"
    parts = {
        part: model.model_copy(update={"weights": _moved(model.weights, old, new)})
        for part, model in (("target", plan.target), ("drafter", plan.drafter))
        if model is not None and model.weights is not None
    }
    mounts = tuple(
        one.model_copy(update={"s3_uri": one.s3_uri.replace(old, new)}) for one in plan.mounts
    )
    return plan.model_copy(update={**parts, "mounts": mounts})


def planned_contents(plan: Plan) -> str | None:
    """The hash of the folders that the plan was made of; ``None`` for a plan without it."""
    start = f"{upload_prefix(plan.name).removesuffix('/')}."
    found = [w.s3_uri.removeprefix(start) for w in local_weights(plan)
             if w.s3_uri and w.s3_uri.startswith(start)]  # fmt: skip
    return found[0].partition("/")[0] if found else None


def _moved(weights: Weights, old: str, new: str) -> Weights:
    uri = weights.s3_uri.replace(old, new) if weights.s3_uri else None
    return weights.model_copy(update={"s3_uri": uri})
