"""A CDK construct for one endpoint, from the values that `peagle render cdk` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_cdk import Aws, CfnTag, RemovalPolicy, Tags
from aws_cdk import aws_applicationautoscaling as autoscaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

VARIANT = "AllTraffic"
_NOT_ISOLATED = {
    "id": "CKV_AWS_370",
    "comment": "Isolation is a choice of the plan: an engine that downloads weights needs the "
    "network",
}


class PeagleEndpoint(Construct):
    """Model, endpoint configuration and endpoint, with the scaling, alarms, dashboard and end time
    of the values.

    ``execution_role_arn`` is the role that SageMaker assumes to read the image and the weights;
    ``model_bucket`` holds the weights where the values name ``${ModelBucket}``. ``ends_at`` is
    the moment of the end, in UTC, such as ``2030-01-31T20:00:00``. ``log_kms_key_arn`` is a KMS
    key that encrypts the log, where the values have one. All four may be tokens, such as those of a
    ``CfnParameter``. Raises ValueError if the values need one that is missing.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        values: Mapping[str, Any],
        execution_role_arn: str,
        model_bucket: str | None = None,
        ends_at: str | None = None,
        log_kms_key_arn: str | None = None,
    ) -> None:
        super().__init__(scope, id)
        self.values = values
        if values["end"] and ends_at is None:
            raise ValueError(f"{values['name']} has an end: give ends_at")
        self.model = self._model(execution_role_arn, model_bucket)
        self.config = self._config()
        self.alarms = {kind: self._alarm(kind, one) for kind, one in values["alarms"].items()}
        self.endpoint = self._endpoint(ends_at)
        self.endpoint_name: str = self.endpoint.attr_endpoint_name
        self._log(log_kms_key_arn)
        self._metric_filters()
        self._scaling()
        self._dashboard()
        if values["end"]:
            self._end(values["end"], str(ends_at))

    @property
    def openai_base_url(self) -> str:
        """The base URL for OpenAI clients; their key is a SageMaker bearer token."""
        host = f"https://runtime.sagemaker.{Aws.REGION}.{Aws.URL_SUFFIX}"
        return f"{host}/endpoints/{self.endpoint_name}/openai/v1"

    def _tags(self) -> list[CfnTag]:
        return _tags(self.values["tags"])

    def _model(self, role: str, bucket: str | None) -> sagemaker.CfnModel:
        model = self.values["model"]
        source = None
        for one in model["data"]:
            if one["channel"] is not None:
                raise ValueError("CloudFormation has no AdditionalModelDataSources")
            if "${ModelBucket}" in one["uri"] and bucket is None:
                raise ValueError(f"the weights of {self.values['name']} need model_bucket")
            source = sagemaker.CfnModel.ModelDataSourceProperty(
                s3_data_source=sagemaker.CfnModel.S3DataSourceProperty(
                    s3_uri=one["uri"].replace("${ModelBucket}", bucket or ""),
                    s3_data_type="S3Prefix",
                    compression_type="None",
                )
            )
        network = None
        if model["subnets"]:
            network = sagemaker.CfnModel.VpcConfigProperty(
                subnets=model["subnets"], security_group_ids=model["security_group_ids"]
            )
        made = sagemaker.CfnModel(
            self,
            "Model",
            execution_role_arn=role,
            primary_container=sagemaker.CfnModel.ContainerDefinitionProperty(
                image=model["image"], environment=model["environment"], model_data_source=source
            ),
            enable_network_isolation=model["network_isolation"] or None,
            vpc_config=network,
            tags=self._tags(),
        )
        if not model["network_isolation"]:
            made.add_metadata("checkov", {"skip": [_NOT_ISOLATED]})
        return made

    def _config(self) -> sagemaker.CfnEndpointConfig:
        """Without a name: a change replaces the configuration, and updates the endpoint to it."""
        kind, instances = sagemaker.CfnEndpointConfig, self.values["instances"]
        strategy = instances["routing_strategy"]
        variant = kind.ProductionVariantProperty(
            variant_name=VARIANT,
            model_name=self.model.attr_model_name,
            instance_type=instances["type"],
            initial_instance_count=instances["count"],
            initial_variant_weight=1,
            inference_ami_version=instances["ami"],
            container_startup_health_check_timeout_in_seconds=instances["startup_timeout_seconds"],
            model_data_download_timeout_in_seconds=instances["download_timeout_seconds"],
            routing_config=kind.RoutingConfigProperty(routing_strategy=strategy)
            if strategy
            else None,
        )
        capture = self.values["capture"]
        return sagemaker.CfnEndpointConfig(
            self,
            "EndpointConfig",
            production_variants=[variant],
            kms_key_id=self.values["kms_key_arn"],
            data_capture_config=kind.DataCaptureConfigProperty(
                enable_capture=True,
                initial_sampling_percentage=capture["percent"],
                destination_s3_uri=capture["uri"],
                kms_key_id=capture["kms_key"],
                capture_options=[
                    kind.CaptureOptionProperty(capture_mode=mode) for mode in ("Input", "Output")
                ],
                capture_content_type_header=kind.CaptureContentTypeHeaderProperty(
                    json_content_types=["application/json"]
                ),
            )
            if capture
            else None,
            tags=self._tags(),
        )

    def _endpoint(self, ends_at: str | None) -> sagemaker.CfnEndpoint:
        ends = {"peagle:ends": f"{ends_at}Z"} if self.values["end"] else {}
        kind = sagemaker.CfnEndpoint
        excluded = [
            kind.VariantPropertyProperty(variant_property_type=one)
            for one in ("DesiredWeight", "DataCaptureConfig")
        ]
        scaled = self.values["scaling"] is not None
        return sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=self.values["name"],
            endpoint_config_name=self.config.attr_endpoint_config_name,
            deployment_config=self._deployment_config(),
            # An update keeps the number of instances that scaling chose.
            retain_all_variant_properties=True if scaled else None,
            exclude_retained_variant_properties=excluded if scaled else None,
            tags=_tags({**self.values["tags"], **ends}),
        )

    def _deployment_config(self) -> sagemaker.CfnEndpoint.DeploymentConfigProperty | None:
        rollout, kind = self.values["rollout"], sagemaker.CfnEndpoint
        if rollout is None:
            return None
        size = rollout["step"] and kind.CapacitySizeProperty(**rollout["step"])
        baking, most = rollout["baking_seconds"], rollout["maximum_execution_seconds"]
        rollback = kind.AutoRollbackConfigProperty(
            alarms=[
                kind.AlarmProperty(alarm_name=alarm.ref)
                for name, alarm in self.alarms.items()
                if self.values["alarms"][name]["undoes_updates"]
            ]
        )
        if rollout["kind"] == "rolling":
            rolling = kind.RollingUpdatePolicyProperty(
                maximum_batch_size=size,
                wait_interval_in_seconds=baking,
                maximum_execution_timeout_in_seconds=most,
            )
            return kind.DeploymentConfigProperty(
                rolling_update_policy=rolling, auto_rollback_configuration=rollback
            )
        traffic = kind.TrafficRoutingConfigProperty(
            type=rollout["kind"].upper().replace("-", "_"),
            wait_interval_in_seconds=baking if size else 0,
            canary_size=size if rollout["kind"] == "canary" else None,
            linear_step_size=size if rollout["kind"] == "linear" else None,
        )
        blue_green = kind.BlueGreenUpdatePolicyProperty(
            traffic_routing_configuration=traffic,
            termination_wait_in_seconds=baking,
            maximum_execution_timeout_in_seconds=most,
        )
        return kind.DeploymentConfigProperty(
            blue_green_update_policy=blue_green, auto_rollback_configuration=rollback
        )

    def _alarm(self, kind: str, alarm: Mapping[str, Any]) -> cloudwatch.CfnAlarm:
        config = self.config.attr_endpoint_config_name
        dimensions = (alarm["dimensions"] or {}).items()
        owner = {"peagle:deployment": self.values["name"], **self.values["own_tags"]}
        return cloudwatch.CfnAlarm(
            self,
            f"{kind.title()}Alarm",
            alarm_name=alarm["name"],
            alarm_description=alarm["description"],
            namespace=alarm["namespace"],
            metric_name=alarm["metric"],
            dimensions=[
                cloudwatch.CfnAlarm.DimensionProperty(
                    name=name, value=config if value == "${EndpointConfigName}" else value
                )
                for name, value in dimensions
            ]
            or None,
            statistic=alarm["statistic"],
            extended_statistic=alarm["extended_statistic"],
            period=alarm["period_seconds"],
            comparison_operator=alarm["comparison"],
            threshold=alarm["threshold"],
            evaluation_periods=alarm["evaluation_periods"],
            datapoints_to_alarm=alarm["datapoints_to_alarm"],
            treat_missing_data=alarm["missing_data"],
            alarm_actions=alarm["actions"] or None,
            ok_actions=alarm["actions"] or None,
            metrics=[_query(one) for one in alarm["queries"]] or None,
            tags=_tags(owner),
        )

    def _log(self, key: str | None) -> None:
        """SageMaker would create the log, without retention, before the stack does."""
        days = self.values["log_retention_days"]
        if days is None:
            return
        log = logs.CfnLogGroup(
            self,
            "Log",
            log_group_name=self._log_name(),
            retention_in_days=days,
            kms_key_id=key,
            tags=_tags(self.values["own_tags"]) or None,
        )
        log.apply_removal_policy(RemovalPolicy.DESTROY)
        self.endpoint.node.add_dependency(log)

    def _log_name(self) -> str:
        return f"/aws/sagemaker/Endpoints/{self.values['name']}"

    def _metric_filters(self) -> None:
        for name, one in self.values["metric_filters"].items():
            metric = logs.CfnMetricFilter.MetricTransformationProperty(
                metric_name=name, metric_namespace=one["namespace"], metric_value=one["value"]
            )
            made = logs.CfnMetricFilter(
                self,
                f"{name}Filter",
                filter_name=one["filter"],
                filter_pattern=one["pattern"],
                log_group_name=self._log_name(),
                metric_transformations=[metric],
            )
            made.node.add_dependency(
                self.endpoint
            )  # SageMaker makes the log when the endpoint starts

    def _scaling(self) -> None:
        scaling = self.values["scaling"]
        if scaling is None:
            return
        target = autoscaling.CfnScalableTarget(
            self,
            "ScalableTarget",
            service_namespace="sagemaker",
            resource_id=f"endpoint/{self.endpoint_name}/variant/{VARIANT}",
            scalable_dimension="sagemaker:variant:DesiredInstanceCount",
            min_capacity=scaling["min_instances"],
            max_capacity=scaling["max_instances"],
        )
        kind = autoscaling.CfnScalingPolicy
        autoscaling.CfnScalingPolicy(
            self,
            "ScalingPolicy",
            policy_name="peagle-concurrency",
            policy_type="TargetTrackingScaling",
            scaling_target_id=target.ref,
            target_tracking_scaling_policy_configuration=(
                kind.TargetTrackingScalingPolicyConfigurationProperty(
                    target_value=scaling["target_concurrency"],
                    scale_in_cooldown=scaling["scale_in_cooldown_seconds"],
                    scale_out_cooldown=scaling["scale_out_cooldown_seconds"],
                    predefined_metric_specification=kind.PredefinedMetricSpecificationProperty(
                        predefined_metric_type=(
                            "SageMakerVariantConcurrentRequestsPerModelHighResolution"
                        )
                    ),
                )
            ),
        )

    def _dashboard(self) -> None:
        if dashboard := self.values["dashboard"]:
            cloudwatch.CfnDashboard(
                self,
                "Dashboard",
                dashboard_name=dashboard["name"],
                dashboard_body=dashboard["body"],
            )

    def _end(self, end: Mapping[str, Any], ends_at: str) -> None:
        """EventBridge Scheduler deletes the endpoint at its end."""
        name = self.values["name"]
        arn = f"arn:{Aws.PARTITION}:sagemaker:{Aws.REGION}:{Aws.ACCOUNT_ID}:endpoint/{name}"
        role = iam.Role(
            self,
            "SchedulerRole",
            assumed_by=iam.ServicePrincipal(
                "scheduler.amazonaws.com",
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            ),
            permissions_boundary=iam.ManagedPolicy.from_managed_policy_arn(
                self, "Boundary", end["permissions_boundary"]
            )
            if end["permissions_boundary"]
            else None,
            inline_policies={"delete-one-endpoint": _deletes(arn, name)},
        )
        for key, value in {**self.values["tags"], **end["tags"]}.items():
            Tags.of(role).add(key, value)
        retries = scheduler.CfnSchedule.RetryPolicyProperty(
            maximum_event_age_in_seconds=86400, maximum_retry_attempts=185
        )
        schedule = scheduler.CfnSchedule(
            self,
            "Schedule",
            name=end["name"],
            description=f"peagle: the end of the endpoint {name}",
            schedule_expression=f"at({ends_at})",
            schedule_expression_timezone="UTC",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=f"arn:{Aws.PARTITION}:scheduler:::aws-sdk:sagemaker:deleteEndpoint",
                role_arn=role.role_arn,
                input=f'{{"EndpointName": "{name}"}}',
                retry_policy=retries,
            ),
        )
        self.endpoint.node.add_dependency(schedule)


def _tags(tags: Mapping[str, str]) -> list[CfnTag]:
    return [CfnTag(key=key, value=value) for key, value in tags.items()]


def _query(query: Mapping[str, Any]) -> cloudwatch.CfnAlarm.MetricDataQueryProperty:
    kind, metric = cloudwatch.CfnAlarm, query["metric"]
    return kind.MetricDataQueryProperty(
        id=query["id"],
        return_data=query["returned"],
        expression=query["expression"],
        label=query["label"],
        metric_stat=kind.MetricStatProperty(
            metric=kind.MetricProperty(namespace=metric["namespace"], metric_name=metric["name"]),
            period=metric["period_seconds"],
            stat=metric["statistic"],
        )
        if metric
        else None,
    )


def _deletes(endpoint_arn: str, name: str) -> iam.PolicyDocument:
    """Deleting this endpoint, while it carries its tag. SageMaker removes the scaling target of an
    endpoint in the name of the caller."""
    return iam.PolicyDocument(
        statements=[
            iam.PolicyStatement(
                actions=["sagemaker:DeleteEndpoint"],
                resources=[endpoint_arn],
                conditions={"StringEquals": {"aws:ResourceTag/peagle:deployment": name}},
            ),
            iam.PolicyStatement(
                actions=["application-autoscaling:DeregisterScalableTarget"],
                resources=["*"],
                conditions={
                    "StringEquals": {"application-autoscaling:service-namespace": "sagemaker"}
                },
            ),
        ]
    )
