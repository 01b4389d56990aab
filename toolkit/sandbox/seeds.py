"""What is in the account from the start."""

from __future__ import annotations

import json

from moto.iam.models import iam_backends

from toolkit.sandbox.client import ACCOUNT, EXECUTION_ROLE

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


def sow() -> None:
    """Create the execution role that SageMaker may take."""
    iam_backends[ACCOUNT]["aws"].create_role(
        role_name=EXECUTION_ROLE,
        assume_role_policy_document=json.dumps(_TRUST),
        path="/",
        permissions_boundary=None,
        description="Execution role of the sandbox",
        tags=[],
        max_session_duration="3600",
    )
