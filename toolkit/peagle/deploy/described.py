"""Revisions, comparison and uploads of a deployment, reconstructed from AWS's descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from peagle.aws import s3
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.sagemaker import Endpoint, ResourceKind
from peagle.catalog.tables import InstanceTable
from peagle.deploy.desired import UPLOADS
from peagle.deploy.live import model_in, served_by_descriptions
from peagle.deploy.proof_tag import proof_in
from peagle.deploy.revisions import COMPARISON_SUFFIX, is_comparison
from peagle.deploy.served import Served, settings_of
from peagle.deploy.state import Resource, Revision, RunningComparison
from peagle.deploy.variants import candidate_share, of_variant, weights_of
from peagle.render.requests import PLAN_TAG, REVISION_TAG, VARIANT
from peagle.s3uri import S3Uri
from peagle.weights.bucket import Bucket
from peagle_serve.contract import is_s3_uri

Prices = Callable[[], InstanceTable | None]
"""Loads the table of instances with their prices; called only when a price is needed."""

_NO_VARIANT: Mapping[str, Any] = {"ProductionVariants": [{}]}
"""For a model without a configuration: its deploy ended before creating one."""


@dataclass(frozen=True)
class Found:
    """A resource with our tags, and its Describe call's answer."""

    kind: ResourceKind
    name: str
    tags: Mapping[str, str]
    description: Mapping[str, Any]


def revisions_of(
    region: str,
    found: list[Found],
    live: Endpoint | None,
    endpoint_tags: Mapping[str, str],
    prices: Prices,
) -> list[Revision]:
    """The revision of every configuration, by the time of creation; of the models, where there is
    no configuration yet."""
    models = {one.name: one for one in found if one.kind == "Model"}
    configs = [f for f in found if f.kind == "EndpointConfig" and _is_of_one_revision(f)]
    revisions = []
    shared = next((one.description for one in configs if not model_in(one.description)), None)
    if shared is not None:  # the instances of copies: a revision is a model on them
        configs = []
    for one in sorted(configs or models.values(), key=_created):
        description = one.description if configs else shared or _planned_config(one.name)
        model = one if one.kind == "Model" else models.get(model_in(description))
        fingerprint = fingerprint_of(one)
        described = model.description if model else {}
        served = served_by_descriptions(region, described, description, one.tags, live, prices())
        revisions.append(
            Revision(
                fingerprint=fingerprint,
                served=served,
                plan=None,
                role=described.get("ExecutionRoleArn", ""),
                bucket=bucket_of_weights(served),
                model=model.name if model else "",
                name=one.name if shared else description["EndpointConfigName"],
                instances_config=shared["EndpointConfigName"] if shared else "",
                proof=proof_in(endpoint_tags, fingerprint),
            )
        )
    return revisions


def _is_of_one_revision(config: Found) -> bool:
    return not is_comparison(fingerprint_of(config))


def comparison_config(found: list[Found], live: Endpoint | None) -> Found | None:
    """The configuration with two variants: the one in service, else any that is left."""
    configs = [f for f in found if f.kind == "EndpointConfig" and is_comparison(fingerprint_of(f))]
    in_service = (
        one for one in configs if live and one.name in (live.revision, live.pending_revision)
    )
    return next(in_service, configs[-1] if configs else None)


def with_first_variant(live: Endpoint, found: list[Found], compares: Found) -> Endpoint:
    """The endpoint as if it served only the first of its two variants."""
    if live.pending_revision == compares.name:
        live = replace(live, pending_revision=None)
    if live.revision != compares.name:
        return live
    model = compares.description["ProductionVariants"][0].get("ModelName")
    alone = (
        one.name
        for one in found
        if one.kind == "EndpointConfig"
        and _is_of_one_revision(one)
        and one.description["ProductionVariants"][0].get("ModelName") == model
    )
    return replace(of_variant(live, VARIANT), revision=next(alone, ""))


def running_comparison(
    compares: Found, revisions: list[Revision], serving: Revision | None, live: Endpoint | None
) -> RunningComparison | None:
    """The comparison with that configuration; ``None`` once its candidate serves alone."""
    fingerprint = fingerprint_of(compares).removesuffix(COMPARISON_SUFFIX)
    candidate = next((one for one in revisions if one.fingerprint == fingerprint), None)
    if candidate is None or serving is None or candidate.fingerprint == serving.fingerprint:
        return None
    is_running = live is not None and live.serves_steadily(compares.name)
    return RunningComparison(
        candidate=candidate,
        config=compares.name,
        share=candidate_share(
            weights_of(compares.description["ProductionVariants"], "InitialVariantWeight")
        ),
        since=live.changed if live and is_running else None,
    )


def _planned_config(model: str) -> dict[str, Any]:
    """The configuration that deploy was about to create for the model."""
    variant = {"VariantName": VARIANT, "ModelName": model}
    return {"EndpointConfigName": "", "ProductionVariants": [variant]}


def fingerprint_of(one: Found) -> str:
    """The revision's fingerprint; for what a template made, the plan's."""
    return one.tags.get(REVISION_TAG) or one.tags.get(PLAN_TAG, "")


def _created(one: Found) -> float:
    moment: datetime = one.description["CreationTime"]
    return moment.timestamp()


def uploaded_weights(
    aws: Aws, models: Iterable[tuple[Mapping[str, Any], str]]
) -> Iterator[Resource]:
    """The uploaded weights of ``models`` (descriptions and fingerprints of their revisions), and
    their buckets where deploy created them or that cannot be read."""
    uploaded = {
        uri: fingerprint
        for model, fingerprint in models
        for uri in filter(_is_uploaded, settings_of(model, _NO_VARIANT)["weights"].values())
    }
    for uri, fingerprint in uploaded.items():
        keys = _keys(aws, S3Uri.parse(uri))
        yield Resource(type="S3Objects", name=uri, made=True, revision=fingerprint, keys=keys)
    for bucket in sorted({S3Uri.parse(uri).bucket for uri in uploaded}):
        if _may_be_ours(aws, bucket):
            yield Resource(type="S3Bucket", name=bucket, made=True, revision="")


def bucket_of_weights(served: Served) -> str | None:
    """The bucket of uploaded weights."""
    uploaded = filter(_is_uploaded, served.weights.values())
    return next((S3Uri.parse(uri).bucket for uri in uploaded), None)


def _keys(aws: Aws, prefix: S3Uri) -> tuple[str, ...]:
    try:
        return tuple(Bucket(aws, prefix.bucket).sizes(prefix.folder.key))
    except Missing:  # without its bucket
        return ()


def _may_be_ours(aws: Aws, bucket: str) -> bool:
    """Whether deploy created the bucket; true where reading its tags is denied."""
    try:
        return s3.is_our_bucket(aws, bucket)
    except AccessDenied:
        return True


def _is_uploaded(uri: str) -> bool:
    """Whether the prefix is one below which deploy uploads, so that destroy removes it."""
    return is_s3_uri(uri) and f"/{S3Uri.parse(uri).key}".startswith(UPLOADS)
