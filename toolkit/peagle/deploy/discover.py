"""Finds deployments in the account by their tags, whichever machine or template made them.

The tags are the truth; a record on this machine is a cache. A deployment that is found here
becomes the same ``Deployment`` as that of a record, so that every command works on it. Only
what ``peagle deploy`` made may be changed by this toolkit (``owner`` is empty); the resources of a
template are shown and proved, and changed by their owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.sagemaker import ID_TAG, Endpoint, ResourceKind
from peagle.aws.tagging import tagged
from peagle.deploy import limits
from peagle.deploy.described import (
    Found,
    Prices,
    comparison_config,
    fingerprint_of,
    revisions_of,
    running_comparison,
    uploaded_weights,
    with_first_variant,
)
from peagle.deploy.live import model_in
from peagle.deploy.owner import owner_of
from peagle.deploy.resources import found_resources
from peagle.deploy.revisions import (
    Roles,
    revision_in_service,
    roles_by_tags,
)
from peagle.deploy.state import Deployment, Resource
from peagle.errors import UserError
from peagle.render.requests import (
    DEPLOYMENT_TAG,
    PAIR_TAG,
    REVISION_TAG,
    VARIANT,
)
from peagle.text import sanitize

_KINDS: dict[str, ResourceKind] = {
    "endpoint": "Endpoint",
    "endpoint-config": "EndpointConfig",
    "model": "Model",
}
"""The kinds in ARNs."""


def unknown_prices() -> None:
    """No table: prices are unknown."""


def find_deployment(aws: Aws, name: str, prices: Prices = unknown_prices) -> Deployment | None:
    """The deployment ``name`` of the account and region, without a record; ``None`` when no
    resource carries its tags.

    An endpoint of that name is also looked up itself: the index of tags is minutes behind. Raises
    AccessDenied when tags or descriptions may not be read: then it is unknown.
    """
    found = list(_found(aws, name))
    if all(one.kind != "Endpoint" for one in found):
        found += _endpoint_not_indexed(aws, name)
    return _deployment(aws, name, found, prices) if found else None


def current_deployment(
    aws: Aws,
    name: str,
    record: Deployment | None,
    prices: Prices = unknown_prices,
    live: Endpoint | None = None,
) -> Deployment | None:
    """The record as the account has it now; without a record, the deployment that the tags show.

    A record whose endpoint was made again elsewhere, has another owner now, or serves a
    configuration that it does not know, is out of date: the account then replaces what the record
    says about revisions. ``live`` is the endpoint, if it was described already. Raises what
    ``find_deployment`` does.
    """
    if record is None:
        return find_deployment(aws, name, prices)
    live = live or sagemaker.describe(aws, name)
    if live is None:
        return record
    tags = sagemaker.readable_tags(aws, live)
    if serves_known_config(record, live) and _is_same(tags, record):
        return limits.with_end_in(record, tags)
    found = find_deployment(aws, name, prices)
    if found is None or found.serving is None:
        return record
    return _with_resources(found, record.resources)


def complete_deployment(aws: Aws, known: Deployment, prices: Prices = unknown_prices) -> Deployment:
    """The deployment with what the tags show besides: resources and the previous revision that
    another machine has added since; as it is known where the tags may not be read."""
    try:
        found = find_deployment(aws, known.name, prices)
    except AccessDenied:
        return known
    if found is None or found.id != known.id:
        return known
    keys = {key for one in known.of_type("S3Objects") for key in one.keys}
    more = [one for one in found.resources if not one.keys or not keys.issuperset(one.keys)]
    complete = _with_resources(known, tuple(more))
    if known.previous is None and _serve_the_same(known, found):
        return complete.model_copy(update={"previous": found.previous})
    return complete


def _serve_the_same(known: Deployment, found: Deployment) -> bool:
    serving = (known.serving, found.serving)
    return len({one.fingerprint if one else "" for one in serving}) == 1


def with_resources_of(record: Deployment, found: Deployment) -> Deployment:
    """The record with the resources that the tags show besides, if both are of one deployment."""
    return _with_resources(record, found.resources) if record.id == found.id else record


def serves_known_config(record: Deployment, live: Endpoint) -> bool:
    """Whether the endpoint serves the configuration in service or being applied: else another
    machine or a template has changed it."""
    return revision_in_service(record, live.revision) is not None


def _is_same(tags: Mapping[str, str] | None, record: Deployment) -> bool:
    """Whether the endpoint's tags say what the record does: else it was made again elsewhere, or
    its template owns it again. As recorded, where tags may not be read."""
    if tags is None:
        return True
    return tags.get(ID_TAG, "") == record.id and owner_of(tags) == record.owner


def _with_resources(deployment: Deployment, more: tuple[Resource, ...]) -> Deployment:
    """The deployment with those of the resources that it does not have."""
    listed = {(one.type, one.name) for one in deployment.resources}
    added = [one for one in more if (one.type, one.name) not in listed]
    return deployment.model_copy(update={"resources": (*deployment.resources, *added)})


class DamagedTags(UserError, code="tags-damaged"):
    """The tags or the description of a resource in the account cannot be those of a deployment.

    Fix: correct the tag that the message names, or remove it
    """


def find_deployments(
    aws: Aws, prices: Prices = unknown_prices
) -> tuple[list[Deployment], list[DamagedTags]]:
    """All deployments of the account and region, by name, without what they have in S3; and the
    errors about those whose tags are damaged, which hide no other. Raises what ``find_deployment``
    does."""
    by_name: dict[str, list[Found]] = {}
    for resource in _found(aws):
        by_name.setdefault(resource.tags[DEPLOYMENT_TAG], []).append(resource)
    deployments: list[Deployment] = []
    damaged: list[DamagedTags] = []
    for name, found in sorted(by_name.items()):
        try:
            if not is_endpoint_name(name):
                raise ValueError(f"{sanitize(name, 80)!r} is not the name of an endpoint")
            deployment = _deployment(aws, name, found, prices, stored=False)
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            resources = ", ".join(f"{one.kind} {one.name}" for one in found)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            message = (
                f"the tag {DEPLOYMENT_TAG} of {resources} in {aws.region} is damaged: {reason}"
            )
            damaged.append(DamagedTags(message, "correct the tag, or remove it"))
            continue
        deployments += [deployment] if deployment else []
    return deployments, damaged


def is_endpoint_name(name: str) -> bool:
    """Whether SageMaker accepts the name (CreateEndpoint, EndpointName)."""
    return _ENDPOINT_NAME.fullmatch(name) is not None


_ENDPOINT_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


def _found(aws: Aws, name: str | None = None) -> Iterator[Found]:
    """The resources with our tags that still exist. ARNs have names in lower case."""
    kinds = tuple(f"sagemaker:{kind}" for kind in _KINDS)
    for one in tagged(aws, DEPLOYMENT_TAG, name, kinds):
        kind = _KINDS[one.kind]
        try:
            description = sagemaker.description(aws, kind, one.name)
        except Missing:
            continue
        yield Found(kind, description[f"{kind}Name"], one.tags, description)


def _endpoint_not_indexed(aws: Aws, name: str) -> Iterator[Found]:
    """The endpoint ``name``, if its own tags say that it is a deployment."""
    try:
        described = sagemaker.description(aws, "Endpoint", name)
        tags = sagemaker.tags_of(aws, described["EndpointArn"])
    except Missing:
        return
    if tags.get(DEPLOYMENT_TAG) == name:
        yield Found("Endpoint", described["EndpointName"], tags, described)


def _deployment(
    aws: Aws, name: str, found: list[Found], prices: Prices, stored: bool = True
) -> Deployment | None:
    """One deployment from its tagged resources; ``None`` when these are gone. The endpoint's owner
    counts; without an endpoint, that of any resource. ``stored``: with what it has in S3."""
    endpoints = sorted((f for f in found if f.kind == "Endpoint"), key=lambda f: f.name != name)
    live = sagemaker.with_component(aws, endpoints[0].description) if endpoints else None
    tags = (endpoints or found)[0].tags
    described = [*found, *_served_without_index(aws, found, live)] if live else found
    compares, whole = comparison_config(described, live), live
    if live and compares:
        live = with_first_variant(live, described, compares)
    found = [one for one in described if one.tags.get(DEPLOYMENT_TAG) == name]
    ids = [one.tags[ID_TAG] for one in (*endpoints, *found) if ID_TAG in one.tags]
    revisions = revisions_of(aws.region, described, live, tags, prices)
    if not revisions:
        return None
    roles = roles_by_tags(revisions, live, tags)
    compared = running_comparison(compares, revisions, roles.serving, whole) if compares else None
    ends_at = limits.latest_end([tags] if endpoints else [one.tags for one in found])
    copies = any(one.instances_config for one in revisions)
    owner = owner_of(tags)
    return Deployment(
        id=ids[0] if ids else uuid4().hex,
        name=name,
        scope=aws.scope,
        account=aws.account,
        region=aws.region,
        serving=roles.serving,
        pending=roles.pending,
        previous=roles.previous,
        comparison=compared,
        resources=(
            *_tagged_resources(found, live),
            *(() if owner or ends_at is None else limits.limit_resources(aws.region, name, copies)),
            *(() if owner or not stored else _observability(aws, name, roles, found)),
            *(uploaded_weights(aws, _models(found)) if stored else ()),
        ),
        billing_since=live.created if live else None,
        owner=owner,
        ends_at=ends_at,
        budget_usd=limits.budget_in(tags),
    )


def _served_without_index(aws: Aws, found: list[Found], live: Endpoint) -> Iterator[Found]:
    """Configuration and model in service that the index of tags does not name: it is behind, or
    these carry no tags of ours."""
    known = {(one.kind, one.name): one for one in found}
    config = known.get(("EndpointConfig", live.endpoint_config))
    if config is None:
        named = _described(aws, "EndpointConfig", live.endpoint_config)
        config = named or _deleted_config(live, found)
        yield config
    model = live.revision if live.hosts_components else model_in(config.description)
    described = _described(aws, "Model", model) if ("Model", model) not in known else None
    if described:
        yield described


def _deleted_config(live: Endpoint, found: list[Found]) -> Found:
    """A configuration that was deleted while it serves: what the endpoint still says of it."""
    tags = next((one.tags for one in found if (one.kind, one.name) == ("Endpoint", live.name)), {})
    variants = [{"VariantName": name} for name in live.running] or [{"VariantName": VARIANT}]
    description = {
        "EndpointConfigName": live.endpoint_config,
        "ProductionVariants": variants,
        "CreationTime": datetime.fromtimestamp(live.created, UTC),
    }
    known = {key: tags[key] for key in (PAIR_TAG, REVISION_TAG) if key in tags}
    return Found("EndpointConfig", live.endpoint_config, known, description)


def _described(aws: Aws, kind: ResourceKind, name: str) -> Found | None:
    """The resource with its tags; ``None`` when it does not exist."""
    if not name:
        return None
    try:
        description = sagemaker.description(aws, kind, name)
        return Found(kind, name, sagemaker.tags_of(aws, description[f"{kind}Arn"]), description)
    except Missing:
        return None


def _tagged_resources(found: list[Found], live: Endpoint | None) -> Iterator[Resource]:
    """What carries our tags; without the endpoint, if that was deleted meanwhile."""
    for one in found:
        if one.kind != "Endpoint" or live is not None:
            yield Resource(type=one.kind, name=one.name, made=True, revision=fingerprint_of(one))


def _observability(aws: Aws, name: str, roles: Roles, found: list[Found]) -> Iterator[Resource]:
    """Alarms, metric filters and dashboard, as of the revision in service; the rules for what the
    configurations capture."""
    revision = roles.serving or roles.pending
    fingerprint = revision.fingerprint if revision else ""
    configs = [(f.description, fingerprint_of(f)) for f in found if f.kind == "EndpointConfig"]
    yield from found_resources(aws, name, fingerprint, configs)


def _models(found: list[Found]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The descriptions of the models, and their revisions."""
    return ((one.description, fingerprint_of(one)) for one in found if one.kind == "Model")
