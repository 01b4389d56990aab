"""What a company prescribes for everything that the toolkit makes in its account: network, keys,
tags, names, roles.

None of it changes the memory or the speed of the engine. A container without a network takes its
weights and its vocabulary from the mounted folder.
"""

import re
from typing import Any

from peagle.errors import UserError
from peagle.frozen import Frozen
from peagle.options import Options
from peagle.text import sanitize

_LONGEST_KEY, _LONGEST_VALUE, _LONGEST_PREFIX = 128, 256, 32
_PREFIX = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9])*-?", re.ASCII)
_TAG = re.compile(r"([\w.:/=+@-]([\w .:/=+@-]*[\w.:/=+@-])?)?")
"""What every service takes in a tag: no spaces at the ends, which some services remove."""
_ID = re.compile(r"[A-Za-z0-9_+=,.@:/-]{1,2048}", re.ASCII)


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


def choose_company(options: Options) -> Company:
    """The settings that the user gives. Raises what ``check_company`` does."""
    company = Company(**{name: getattr(options, name) for name in Company.model_fields})
    check_company(company)
    return company


def check_company(company: Company) -> None:
    """Raise UserError for what the toolkit reserves, and for names and tags that a service would
    reject late. Of ids and ARNs AWS is the judge; here they only need to be free of markup."""
    for key in ("subnets", "security_groups", "kms_key", "permissions_boundary"):
        value = getattr(company, key) or ()
        for text in (value,) if isinstance(value, str) else value:
            if not _ID.fullmatch(text):
                message = f"{key} {sanitize(text, 80)!r} is neither an id nor an ARN"
                raise UserError(message, "copy it from AWS's console", "invalid-id")
    if bool(company.subnets) != bool(company.security_groups):
        raise UserError(
            "SageMaker attaches containers to a VPC with subnets and security_groups",
            f"add {'security_groups' if company.subnets else 'subnets'}",
            "invalid-network",
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
        if is_reserved or not is_short or not all(map(_TAG.fullmatch, (key, value))):
            raise UserError(
                f"--tag {sanitize(key, 60)!r} is not a tag of 1 to {_LONGEST_KEY} characters and a "
                f"value of up to {_LONGEST_VALUE}, or is reserved",
                "use letters, digits, spaces and _.:/=+-@, and no prefix aws: or peagle:",
                "invalid-tag",
            )


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
