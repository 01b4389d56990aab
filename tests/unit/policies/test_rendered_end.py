"""The rendered boto3 script sets and removes an end with what infra/iam allows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from peagle.planning import Options, make_plan
from peagle.planning.company import Company
from peagle.render.formats.boto3 import script
from tests.unit.aws.cloud import ACCOUNT
from tests.unit.policies.accesses import Call, accesses
from tests.unit.policies.evaluation import Access, denied, statements
from tests.unit.rendering.plans import CATALOG

PLAN = make_plan(Options(pair="tiny", ttl=8 * 3600), CATALOG)
TAGS = {"peagle:toolkit": "limits"}


class Exists(Exception):
    """What IAM and the scheduler raise for a name that is taken."""


class Session:
    """Keeps what every call needs to be allowed; ``again``: role and schedule exist."""

    def __init__(self, again: bool) -> None:
        self.again, self.needed, self.calls = again, list[Access](), list[str]()

    def client(self, service: str) -> Any:
        session = self

        class Client:
            exceptions = SimpleNamespace(
                EntityAlreadyExistsException=Exists, ConflictException=Exists
            )

            def __getattr__(self, operation: str) -> Any:
                return lambda **given: session.call(service, operation, given)

        return Client()

    def call(self, service: str, operation: str, given: dict[str, Any]) -> Any:
        self.calls.append(operation)
        if operation == "get_caller_identity":  # needs no permission
            return {"Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/someone"}
        if operation == "describe_endpoint":
            missing = {"Error": {"Code": "ValidationException", "Message": "Could not find"}}
            raise ClientError(missing, "DescribeEndpoint")
        call = Call(service, operation, given, ACCOUNT, PLAN.region)
        role = f"arn:aws:iam::{ACCOUNT}:role/{given.get('RoleName')}"
        self.needed += accesses(call, {role: TAGS})
        if self.again and operation.startswith("create_"):
            raise Exists(operation)
        return {}


def functions(company: Company) -> dict[str, Any]:
    """What the script defines."""
    found: dict[str, Any] = {"__name__": "deploy"}
    exec(script(PLAN.model_copy(update={"company": company})), found)
    return found


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("company", [Company(), Company(tags={"team": "ml"})])
def test_the_script_needs_no_more_than_the_limit_policy(again: bool, company: Company) -> None:
    session = Session(again)
    defined = functions(company)

    defined["set_end"](session, None)
    defined["remove_end"](session)

    lacking = denied(statements("limit-policy", ACCOUNT), session.needed)
    assert [one.text for one in lacking] == []
    assert ("update_schedule" in session.calls) is again
    assert {"put_role_policy", "delete_schedule", "delete_role"} < set(session.calls)
