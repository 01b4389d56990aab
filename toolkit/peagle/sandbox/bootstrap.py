"""What moto's account has from the start: the execution role, and an IAM that starts quickly."""

from __future__ import annotations

import copy
import json
from typing import Any

from moto.core.common_models import BaseModel
from moto.iam import urls as iam_urls
from moto.iam.models import IAMBackend, ManagedPolicy, iam_backends

from peagle.sandbox.client import ACCOUNT, EXECUTION_ROLE

_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


class Iam(IAMBackend):
    """moto's IAM, which reads AWS's 1,600 managed policies once.

    moto reads them for each of five partitions, and again after every reset, which takes seconds.
    """

    _read: list[ManagedPolicy] = []

    @property
    def _url_module(self) -> Any:
        """moto derives it from the class's module, which here is not moto's."""
        return iam_urls

    def _init_aws_policies(self) -> list[ManagedPolicy]:
        if self.partition != "aws":
            return []
        if not Iam._read:
            Iam._read = super()._init_aws_policies()
        return [copy.copy(policy) for policy in Iam._read]


def install() -> None:
    """Let this process's moto use ``Iam``, and forget what was deleted: moto keeps a list of all
    objects, for a page that the sandbox does not have. Call it before the first request."""
    iam_backends.backend = Iam
    type.__setattr__(BaseModel, "__new__", lambda cls, *_, **__: object.__new__(cls))


def create_role() -> None:
    """Create what the account contains from the start: the execution role for SageMaker."""
    iam_backends[ACCOUNT]["aws"].create_role(
        role_name=EXECUTION_ROLE,
        assume_role_policy_document=json.dumps(_TRUST),
        path="/",
        permissions_boundary=None,
        description="Execution role of the sandbox",
        tags=[],
        max_session_duration="3600",
    )
