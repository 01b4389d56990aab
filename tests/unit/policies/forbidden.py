"""What the policies in infra/iam must not allow: another's resources, and ways to more rights."""

from tests.unit.policies.evaluation import Access

HERE, ELSEWHERE = "us-east-1:123456789012", "us-east-1:999999999999"
LOGS = f"arn:aws:logs:{HERE}:log-group:"
SM = f"arn:aws:sagemaker:{HERE}"
OURS = {"aws:ResourceTag/peagle:deployment": "peagle-pair"}
KEY, KEY_OF_OTHERS = f"arn:aws:kms:{HERE}:key/1", f"arn:aws:kms:{ELSEWHERE}:key/1"
SCALED = {"application-autoscaling:service-namespace": "sagemaker"}
BUILD = {"aws:ResourceTag/peagle:toolkit": "images"}
LIMITS = {"aws:ResourceTag/peagle:toolkit": "limits"}
ROLES = "arn:aws:iam::123456789012:role"


def each(actions: str, resource: str, context: dict[str, str] | None = None) -> list[Access]:
    """The actions of one service, separated by spaces."""
    service, _, names = actions.partition(":")
    return [Access(f"{service}:{name}", resource, context or {}) for name in names.split()]


def to(service: str) -> dict[str, str]:
    """The service that a role is passed to."""
    return {"iam:PassedToService": f"{service}.amazonaws.com"}


FORBIDDEN: dict[str, list[Access]] = {
    "deploy-policy": [
        *each("iam:GetRole SimulatePrincipalPolicy", "arn:aws:iam::999999999999:role/peagle"),
        *each("ecr:BatchGetImage", f"arn:aws:ecr:{HERE}:pull-through-cache-rule/x"),
        *each("sagemaker:DescribeModel ListTags", f"arn:aws:sagemaker:{ELSEWHERE}:model/x"),
        *each("sagemaker:CreateModel", f"{SM}:model/x"),
        *each("sagemaker:CreateEndpoint", f"{SM}:endpoint/x"),
        *each("sagemaker:CreateModel", f"arn:aws:sagemaker:{ELSEWHERE}:model/x",
               {"aws:RequestTag/peagle:deployment": "x"}),
        # Tagging another's endpoint would make it ours.
        *each("sagemaker:AddTags", f"{SM}:endpoint/theirs"),
        *each("sagemaker:AddTags", f"{SM}:endpoint/theirs",
               {"aws:RequestTag/peagle:deployment": "theirs"}),
        *each("sagemaker:AddTags", f"{SM}:training-job/theirs",
               {"sagemaker:TaggingAction": "CreateEndpoint"}),
        *each("sagemaker:AddTags", f"{SM}:notebook-instance/theirs", OURS),
        *each("sagemaker:UpdateEndpoint DeleteEndpoint InvokeEndpoint", f"{SM}:endpoint/theirs"),
        *each("sagemaker:CreateInferenceComponent UpdateInferenceComponent "
              "DeleteInferenceComponent", f"{SM}:inference-component/theirs"),
        *each("sagemaker:DeleteModel", f"{SM}:model/theirs"),
        *each("sagemaker:DeleteEndpoint", f"arn:aws:sagemaker:{ELSEWHERE}:endpoint/x", OURS),
        *each("application-autoscaling:DeregisterScalableTarget",
               f"arn:aws:application-autoscaling:{HERE}:scalable-target/1",
               {"application-autoscaling:service-namespace": "dynamodb"}),
        *each("application-autoscaling:DeregisterScalableTarget",
               f"arn:aws:application-autoscaling:{ELSEWHERE}:scalable-target/1", SCALED),
        *each("cloudwatch:DeleteAlarms PutMetricAlarm TagResource",
               f"arn:aws:cloudwatch:{HERE}:alarm:theirs"),
        *each("sns:GetTopicAttributes", f"arn:aws:sns:{ELSEWHERE}:theirs"),
        *each("cloudwatch:PutDashboard DeleteDashboards",
               "arn:aws:cloudwatch::123456789012:dashboard/theirs"),
        # Any role would lend its rights to a container of the deployer's choice.
        *each("iam:PassRole", f"{ROLES}/Admin", to("sagemaker")),
        *each("iam:PassRole", f"{ROLES}/peagle-execution",
               to("lambda")),
        *each("logs:FilterLogEvents DeleteLogGroup PutMetricFilter", f"{LOGS}/aws/lambda/x"),
        *each("logs:DeleteLogGroup PutRetentionPolicy DeleteMetricFilter",
               f"{LOGS}/aws/sagemaker/Endpoints/theirs"),
        *each("logs:DeleteLogGroup PutRetentionPolicy DeleteMetricFilter",
               f"{LOGS}/aws/sagemaker/InferenceComponents/theirs"),
        *each("s3:ListBucket CreateBucket DeleteBucket", "arn:aws:s3:::theirs"),
        *each("s3:GetObject PutObject DeleteObject", "arn:aws:s3:::theirs/x"),
        *each("kms:Decrypt", KEY),
        *each("kms:Decrypt", KEY, {"kms:ViaService": "ssm.us-east-1.amazonaws.com"}),
        *each("kms:Decrypt", KEY_OF_OTHERS, {"kms:ViaService": "s3.us-east-1.amazonaws.com"}),
        *each("kms:CreateGrant", KEY),
        *each("kms:CreateGrant", KEY, {"kms:ViaService": "ec2.us-east-1.amazonaws.com"}),
        *each("kms:CreateGrant", KEY_OF_OTHERS,
               {"kms:ViaService": "sagemaker.us-east-1.amazonaws.com"}),
        *each("ec2:CreateNetworkInterface AuthorizeSecurityGroupEgress", "*"),
    ],
    "image-policy": [
        *each("ecr:BatchGetImage", f"arn:aws:ecr:{HERE}:pull-through-cache-rule/x"),
        *each("ecr:PutImage DeleteRepository", f"arn:aws:ecr:{HERE}:repository/theirs"),
        *each("codebuild:StartBuild DeleteProject", f"arn:aws:codebuild:{HERE}:project/theirs"),
        # Whoever may write the policies of any role that may be passed is an administrator.
        *each("iam:CreateRole TagRole", f"{ROLES}/peagle-execution"),
        *each("iam:CreateRole", f"{ROLES}/theirs", {"aws:RequestTag/peagle:toolkit": "images"}),
        *each("iam:PutRolePolicy DeleteRole", f"{ROLES}/peagle-execution"),
        *each("iam:PutRolePolicy", f"{ROLES}/theirs", BUILD),
        *each("iam:PutRolePermissionsBoundary DeleteRolePermissionsBoundary",
               f"{ROLES}/peagle-execution"),
        *each("iam:GetRole", f"{ROLES}/theirs"),
        *each("iam:PassRole", f"{ROLES}/theirs", to("codebuild")),
        *each("iam:PassRole", f"{ROLES}/peagle-tiny", to("ec2")),
        *each("logs:DeleteLogGroup", f"{LOGS}/aws/codebuild/theirs"),
        *each("s3:DeleteBucket", "arn:aws:s3:::theirs"),
        *each("s3:PutObject", "arn:aws:s3:::theirs/x"),
        *each("kms:Decrypt", KEY),
        *each("kms:Decrypt", KEY_OF_OTHERS, {"kms:ViaService": "s3.us-east-1.amazonaws.com"}),
    ],
    "execution-role-policy": [
        *each("cloudwatch:DescribeAlarms", f"arn:aws:cloudwatch:{HERE}:alarm:theirs"),
        *each("ecr:BatchGetImage", f"arn:aws:ecr:{HERE}:pull-through-cache-rule/x"),
        *each("logs:PutLogEvents", f"{LOGS}/aws/lambda/x:log-stream:y"),
        *each("s3:ListBucket", "arn:aws:s3:::theirs"),
        *each("s3:GetObject PutObject", "arn:aws:s3:::theirs/x"),
        # A container must not change the weights that it reads.
        *each("s3:PutObject", "arn:aws:s3:::peagle-models/x"),
        *each("kms:Decrypt", KEY),
        *each("kms:Decrypt", KEY_OF_OTHERS, {"kms:ViaService": "s3.us-east-1.amazonaws.com"}),
    ],
    "read-policy": [
        *each("sagemaker:DescribeModel ListTags", f"arn:aws:sagemaker:{ELSEWHERE}:model/x"),
        *each("sagemaker:UpdateEndpoint DeleteEndpoint InvokeEndpoint AddTags",
               f"{SM}:endpoint/peagle-tiny", OURS),
        *each("sagemaker:CreateModel", f"{SM}:model/x", {"aws:RequestTag/peagle:deployment": "x"}),
        *each("logs:PutMetricFilter", f"{LOGS}/aws/sagemaker/Endpoints/peagle-tiny"),
        *each("logs:DescribeMetricFilters", f"{LOGS}/aws/lambda/x"),
        *each("scheduler:UpdateSchedule DeleteSchedule",
               f"arn:aws:scheduler:{HERE}:schedule/default/peagle-ends-x"),
        *each("scheduler:GetSchedule", f"arn:aws:scheduler:{HERE}:schedule/default/theirs"),
        *each("s3:ListBucket", "arn:aws:s3:::theirs"),
        *each("s3:GetObject", "arn:aws:s3:::theirs/x"),
        *each("s3:PutObject DeleteObject", "arn:aws:s3:::peagle-models/x"),
        *each("kms:Decrypt", KEY),
        *each("kms:Decrypt", KEY_OF_OTHERS, {"kms:ViaService": "s3.us-east-1.amazonaws.com"}),
        *each("iam:PassRole", f"{ROLES}/peagle-execution", to("sagemaker")),
    ],
    "limit-policy": [
        *each("scheduler:CreateSchedule UpdateSchedule DeleteSchedule GetSchedule",
               f"arn:aws:scheduler:{HERE}:schedule/default/theirs"),
        *each("scheduler:CreateSchedule",
               f"arn:aws:scheduler:{ELSEWHERE}:schedule/default/peagle-ends-x"),
        # Whoever may write the policies of a role that the scheduler assumes has all its rights.
        *each("iam:CreateRole TagRole", f"{ROLES}/peagle-ends-x"),
        *each("iam:CreateRole", f"{ROLES}/theirs", {"aws:RequestTag/peagle:toolkit": "limits"}),
        *each("iam:PutRolePolicy DeleteRolePolicy DeleteRole", f"{ROLES}/peagle-ends-x"),
        *each("iam:PutRolePolicy", f"{ROLES}/theirs", LIMITS),
        *each("iam:PassRole", f"{ROLES}/theirs", to("scheduler")),
        *each("iam:PassRole", f"{ROLES}/peagle-ends-x", to("sagemaker")),
    ],
    "execution-role-vpc-policy": [
        *each("ec2:RunInstances AuthorizeSecurityGroupEgress CreateRoute", "*"),
        *each("s3:GetObject", "arn:aws:s3:::peagle-models/x"),
    ],
    "training-policy": [
        *each("sagemaker:CreateTrainingJob", f"{SM}:training-job/x"),
        *each("sagemaker:CreateTrainingJob", f"arn:aws:sagemaker:{ELSEWHERE}:training-job/x",
               {"aws:RequestTag/peagle:toolkit": "training"}),
        *each("sagemaker:StopTrainingJob", f"{SM}:training-job/theirs"),
        *each("sagemaker:AddTags", f"{SM}:training-job/theirs"),
        *each("sagemaker:AddTags", f"{SM}:endpoint/theirs",
               {"sagemaker:TaggingAction": "CreateTrainingJob"}),
        *each("sagemaker:CreateEndpoint DeleteEndpoint", f"{SM}:endpoint/x", OURS),
        # Any role would lend its rights to a container of the caller's choice.
        *each("iam:PassRole", f"{ROLES}/Admin", to("sagemaker")),
        *each("iam:PassRole", f"{ROLES}/peagle-training", to("ec2")),
        *each("logs:FilterLogEvents", f"{LOGS}/aws/lambda/x"),
        *each("s3:ListBucket CreateBucket", "arn:aws:s3:::theirs"),
        *each("s3:GetObject PutObject", "arn:aws:s3:::theirs/x"),
        *each("s3:DeleteObject", "arn:aws:s3:::peagle-models/x"),
        *each("kms:Decrypt", KEY),
        *each("kms:CreateGrant", KEY, {"kms:ViaService": "ec2.us-east-1.amazonaws.com"}),
    ],
    "training-role-policy": [
        *each("ecr:BatchGetImage", f"arn:aws:ecr:{HERE}:pull-through-cache-rule/x"),
        *each("logs:PutLogEvents", f"{LOGS}/aws/lambda/x:log-stream:y"),
        *each("s3:ListBucket", "arn:aws:s3:::theirs"),
        *each("s3:GetObject PutObject", "arn:aws:s3:::theirs/x"),
        # A job must not change the weights that endpoints read.
        *each("s3:PutObject", "arn:aws:s3:::peagle-models/pair/target/config.json"),
        *each("s3:DeleteObject", "arn:aws:s3:::peagle-models/peagle-train/x"),
        *each("kms:Decrypt", KEY),
        *each("kms:Decrypt", KEY_OF_OTHERS, {"kms:ViaService": "s3.us-east-1.amazonaws.com"}),
    ],
    "scaling-policy": [
        *each("application-autoscaling:PutScalingPolicy",
               f"arn:aws:application-autoscaling:{HERE}:scalable-target/1"),
        *each("application-autoscaling:PutScalingPolicy",
               f"arn:aws:application-autoscaling:{ELSEWHERE}:scalable-target/1", SCALED),
        *each("cloudwatch:DeleteAlarms", f"arn:aws:cloudwatch:{HERE}:alarm:theirs"),
        *each("sagemaker:UpdateEndpointWeightsAndCapacities", f"{SM}:endpoint/theirs"),
        *each("sagemaker:UpdateEndpointWeightsAndCapacities",
               f"arn:aws:sagemaker:{ELSEWHERE}:endpoint/x", OURS),
        *each("sagemaker:UpdateInferenceComponentRuntimeConfig",
               f"{SM}:inference-component/theirs"),
        *each("sagemaker:UpdateInferenceComponentRuntimeConfig",
               f"arn:aws:sagemaker:{ELSEWHERE}:inference-component/x", OURS),
        *each("iam:CreateServiceLinkedRole", f"{ROLES}/aws-service-role/ecs.amazonaws.com/x",
               {"iam:AWSServiceName": "sagemaker.application-autoscaling.amazonaws.com"}),
        *each("iam:CreateServiceLinkedRole",
               f"{ROLES}/aws-service-role/sagemaker.application-autoscaling.amazonaws.com/x",
               {"iam:AWSServiceName": "ecs.amazonaws.com"}),
    ],
}  # fmt: skip
"""What a policy must not allow."""
