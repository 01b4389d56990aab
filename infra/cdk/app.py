"""A CDK app with one endpoint, from `values.json`."""

from __future__ import annotations

import json
from pathlib import Path

from aws_cdk import (
    App,
    Aws,
    BootstraplessSynthesizer,
    CfnCondition,
    CfnOutput,
    CfnParameter,
    Environment,
    Fn,
    Stack,
)
from constructs import Construct
from peagle_endpoint import PeagleEndpoint

VALUES = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))


class EndpointStack(Stack):
    """The endpoint; what differs between accounts is a parameter of the stack."""

    def __init__(self, scope: Construct, id: str) -> None:
        # Without assets, the account needs no `cdk bootstrap`.
        region, plain = Environment(region=VALUES["region"]), BootstraplessSynthesizer()
        super().__init__(scope, id, env=region, synthesizer=plain)
        role = CfnParameter(
            self,
            "ExecutionRoleArn",
            description="ARN of the role that SageMaker assumes to read the image and the weights",
        )
        bucket = ends = None
        if any("${ModelBucket}" in one["uri"] for one in VALUES["model"]["data"]):
            bucket = CfnParameter(
                self, "ModelBucket", description="Bucket that holds the weights; see README.md"
            ).value_as_string
        if VALUES["end"]:
            ends = CfnParameter(
                self,
                "EndsAt",
                description="When the endpoint is deleted, in UTC, such as 2030-01-31T20:00:00",
            ).value_as_string
        endpoint = PeagleEndpoint(
            self,
            "Peagle",
            values=VALUES,
            execution_role_arn=role.value_as_string,
            model_bucket=bucket,
            ends_at=ends,
            log_kms_key_arn=self._log_key(),
        )
        CfnOutput(self, "EndpointName", value=endpoint.endpoint_name)
        CfnOutput(self, "OpenAIBaseURL", value=endpoint.openai_base_url)

    def _log_key(self) -> str | None:
        """The key of the log, if the values have a log: a parameter that may be empty."""
        if VALUES["log_retention_days"] is None:
            return None
        key = CfnParameter(
            self,
            "LogKmsKeyArn",
            default="",
            description="ARN of a KMS key that encrypts the log and that CloudWatch Logs may use; "
            "empty for CloudWatch's own",
        ).value_as_string
        given = Fn.condition_not(Fn.condition_equals(key, ""))
        condition = CfnCondition(self, "EncryptsLog", expression=given)
        return Fn.condition_if(condition.logical_id, key, Aws.NO_VALUE).to_string()


app = App()
EndpointStack(app, "peagle-" + VALUES["name"].removeprefix("peagle-"))
app.synth()
