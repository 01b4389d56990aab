"""IAM's decision about an access, for the part of the policy language that infra/iam uses.

moto's evaluator takes an unmet condition of one statement as a denial by all of them, and does not
know ``Null``.
"""

import functools
import json
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLICIES = Path(__file__).resolve().parents[3] / "infra" / "iam"
Statement = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class Access:
    """What IAM decides about: an action on one resource, with the keys that conditions read."""

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def text(self) -> str:
        """One line of a list."""
        keys = "".join(f" {key}={value}" for key, value in sorted(self.context.items()))
        return f"{self.action} {self.resource}{keys}"


def statements(policy: str, account: str, partition: str = "aws") -> list[dict[str, Any]]:
    """The statements of a file in infra/iam, for this account."""
    text = (POLICIES / f"{policy}.json").read_text()
    filled = string.Template(text).substitute(account=account, partition=partition)
    return list(json.loads(filled)["Statement"])


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def is_allowed(policy: Iterable[Statement], access: Access) -> bool:
    """Whether one statement allows it; infra/iam denies nothing expressly."""
    return any(_applies(statement, access) for statement in policy)


def denied(policy: Sequence[Statement], accesses: Iterable[Access]) -> list[Access]:
    """Those that the policy does not allow."""
    return [access for access in accesses if not is_allowed(policy, access)]


def _applies(statement: Statement, access: Access) -> bool:
    assert statement["Effect"] == "Allow"
    return (
        any(_names(each, access.action) for each in listed(statement["Action"]))
        and any(_like(each, access.resource) for each in listed(statement.get("Resource", "*")))
        and all(
            _OPERATORS[operator](access.context.get(key), listed(values))
            for operator, keys in statement.get("Condition", {}).items()
            for key, values in keys.items()
        )
    )


@functools.cache
def _names(pattern: str, action: str) -> bool:
    return _like(pattern.lower(), action.lower())


@functools.cache
def _like(pattern: str, text: str) -> bool:
    """IAM's wildcards: ``*`` and ``?``. The tests ask the same again for each part of a policy."""
    parts = re.split(r"([*?])", pattern)
    wild = {"*": ".*", "?": "."}
    expression = "".join(wild.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(expression, text) is not None


_OPERATORS: dict[str, Callable[[str | None, list[str]], bool]] = {
    "Null": lambda value, allowed: [str(value is None).lower()] == allowed,
    "StringEquals": lambda value, allowed: value in allowed,
    "StringLike": lambda value, allowed: (
        value is not None and any(_like(pattern, value) for pattern in allowed)
    ),
}
