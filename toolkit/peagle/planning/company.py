"""What a company prescribes for everything that the toolkit makes in its account: network, keys,
tags, names, roles.

None of it changes the memory or the speed of the engine. A container without a network takes its
weights and its vocabulary from the mounted folder.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from peagle.errors import UserError
from peagle.options import Frozen, Options
from peagle.text import sanitize

MOST_SUBNETS, MOST_SECURITY_GROUPS = 16, 5
"""Of a model's VpcConfig, from SageMaker's service model."""

MOST_TAGS = 38
"""AWS allows 50 tags on a resource; those of the toolkit (``peagle:...``) take up to 12."""

_LONGEST_KEY, _LONGEST_VALUE, _LONGEST_PREFIX = 128, 256, 32
_SUBNET = re.compile(r"subnet-[0-9a-f]{8,17}", re.ASCII)
_SECURITY_GROUP = re.compile(r"sg-[0-9a-f]{8,17}", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9])*-?", re.ASCII)
_KEY_ID = r"(mrk-[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})"
_ALIAS = r"alias/[A-Za-z0-9/_-]{1,250}"
_KEY = re.compile(
    rf"{_KEY_ID}|{_ALIAS}|arn:aws[a-z-]*:kms:(?P<region>[a-z0-9-]+):\d{{12}}:(key/{_KEY_ID}|{_ALIAS})",
    re.ASCII,
)
_BOUNDARY = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]{1,512}", re.ASCII)


class Company(Frozen):
    """The settings of a company's account; empty ones are those of an account without rules.

    ``subnets`` and ``security_groups`` are the VPC that containers are attached to.
    ``network_isolation``: the container has no network at all. ``kms_key`` is an id, an ARN or an
    alias of a key; it encrypts the instances' storage volumes and uploads to S3. ``tags`` are on
    everything that the toolkit makes. Names begin with ``name_prefix``. Roles that the toolkit
    makes have the policy ``permissions_boundary`` (an ARN) as their boundary.
    """

    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    network_isolation: bool = False
    kms_key: str | None = None
    tags: dict[str, str] = {}
    name_prefix: str = ""
    permissions_boundary: str | None = None

    @property
    def in_vpc(self) -> bool:
        return bool(self.subnets)

    @property
    def tag_list(self) -> list[dict[str, str]]:
        """The tags as most of AWS's APIs take them."""
        return [{"Key": key, "Value": value} for key, value in sorted(self.tags.items())]


NO_COMPANY = Company()


def choose_company(options: Options, region: str) -> Company:
    """The settings that the user gives. Raises what ``check_company`` does, and UserError for a key
    of another region than the endpoint's."""
    company = Company(**{name: getattr(options, name) for name in Company.model_fields})
    check_company(company)
    key = _KEY.fullmatch(company.kms_key or "")
    if key and key["region"] not in (None, region):
        raise UserError(
            f"kms_key is a key of {key['region']}, and the endpoint is in {region}",
            f"use a key of {region}",
            "invalid-kms-key",
        )
    return company


def check_company(company: Company) -> None:
    """Raise UserError for what AWS rejects or the toolkit reserves."""
    subnets, groups = company.subnets, company.security_groups
    for flag, ids, pattern, most, example in (
        ("subnets", subnets, _SUBNET, MOST_SUBNETS, "subnet-0a1b2c3d"),
        ("security_groups", groups, _SECURITY_GROUP, MOST_SECURITY_GROUPS, "sg-0a1b2c3d"),
    ):
        wrong = [resource_id for resource_id in ids if not pattern.fullmatch(resource_id)]
        if wrong or len(ids) > most or len(set(ids)) < len(ids):
            shown = f": {sanitize(wrong[0], 40)!r}" if wrong else ""
            raise UserError(
                f"{flag} are no ids that SageMaker takes{shown}",
                f"use up to {most} different ids such as {example}, with commas between them",
                "invalid-network",
            )
    if bool(subnets) != bool(groups):
        raise UserError(
            "SageMaker attaches containers to a VPC with subnets and security_groups",
            f"add {'security_groups' if subnets else 'subnets'}",
            "invalid-network",
        )
    if company.kms_key is not None and not _KEY.fullmatch(company.kms_key):
        raise UserError(
            f"kms_key {sanitize(company.kms_key, 80)!r} is not a key of KMS",
            "use a key's id or ARN, or its alias such as alias/models",
            "invalid-kms-key",
        )
    boundary = company.permissions_boundary
    if boundary is not None and not _BOUNDARY.fullmatch(boundary):
        raise UserError(
            f"permissions_boundary {sanitize(boundary, 80)!r} is not the ARN of a policy",
            "use an ARN such as arn:aws:iam::111122223333:policy/boundary",
            "invalid-boundary",
        )
    prefix = company.name_prefix
    if prefix and (len(prefix) > _LONGEST_PREFIX or not _PREFIX.fullmatch(prefix)):
        raise UserError(
            f"name_prefix {sanitize(prefix, 40)!r} cannot begin a name",
            f"use up to {_LONGEST_PREFIX} letters, digits and hyphens, such as acme-",
            "invalid-name",
        )
    tags = company.tags
    for key, value in tags.items():
        is_reserved = key.lower().startswith(("aws:", "peagle:"))
        is_short = 0 < len(key) <= _LONGEST_KEY and len(value) <= _LONGEST_VALUE
        if is_reserved or not is_short or not _is_tag_text(key) or not _is_tag_text(value):
            raise UserError(
                f"--tag {sanitize(key, 60)!r} is not a tag of 1 to {_LONGEST_KEY} characters and a "
                f"value of up to {_LONGEST_VALUE}, or is reserved",
                "use letters, digits, spaces and _.:/=+-@, and no prefix aws: or peagle:",
                "invalid-tag",
            )
    if len(tags) > MOST_TAGS:
        raise UserError(
            f"--tag is given {len(tags)} times; AWS's limit of 50 leaves {MOST_TAGS} in "
            "addition to the toolkit's own",
            "give fewer",
            "invalid-tag",
        )


def _is_tag_text(text: str) -> bool:
    """Whether every service takes the text in a tag: AWS's pattern without separators other than
    the space, and without spaces at the ends, which some services remove."""
    return text == text.strip() and all(
        char in " _.:/=+-@" or unicodedata.category(char)[0] in "LN" for char in text
    )


def parse_tags(texts: Iterable[str]) -> dict[str, str]:
    """``KEY=VALUE`` by key. Raises UserError for other text, and for a key that is given twice."""
    tags: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals or key in tags:
            raise UserError(
                f"--tag {sanitize(text, 60)!r} has no value, or is given twice",
                "write KEY=VALUE once",
                "invalid-tag",
            )
        tags[key] = value
    return tags


def prefixed(name: str, prefix: str) -> str:
    """``name`` with the prefix, unless it has it."""
    return name if name.startswith(prefix) else prefix + name


def model_network(company: Company) -> dict[str, Any]:
    """The parameters of CreateModel that attach its container to the VPC, or isolate it."""
    parameters: dict[str, Any] = {}
    if company.in_vpc:
        parameters["VpcConfig"] = {
            "SecurityGroupIds": list(company.security_groups),
            "Subnets": list(company.subnets),
        }
    if company.network_isolation:
        parameters["EnableNetworkIsolation"] = True
    return parameters


def role_settings(company: Company) -> dict[str, Any]:
    """The parameters of CreateRole for the company's boundary and tags; empty without any."""
    boundary = company.permissions_boundary
    return {
        **({"PermissionsBoundary": boundary} if boundary else {}),
        **({"Tags": company.tag_list} if company.tags else {}),
    }


def role_parameters(company: Company, purpose: str) -> dict[str, Any]:
    """The parameters of CreateRole for a role that the toolkit makes for the ``purpose``, such as
    ``limits``: the company's boundary and tags, and the tag without which
    ``infra/iam/limit-policy.json`` allows no role."""
    tags = [{"Key": "peagle:toolkit", "Value": purpose}, *company.tag_list]
    return {**role_settings(company), "Tags": tags}


def encrypted_by(kms_key: str | None) -> dict[str, str]:
    """The parameters with which S3 encrypts an object with that key; none for ``None``."""
    return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key} if kms_key else {}
