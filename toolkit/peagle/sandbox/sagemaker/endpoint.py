"""The life of an endpoint.

    CreateEndpoint   Creating -> InService | Failed
    UpdateEndpoint   Updating -> InService with the new configuration, or, when its engine fails,
                     with the old one (AWS rolls back) and a FailureReason
    DeleteEndpoint   Deleting -> gone

A thread per change waits for the engine. What it finds is written under ``LOCK``, which also
guards every check that comes before a change.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

from moto.core.utils import utcnow
from moto.sagemaker.models import FakeEndpoint

from peagle.sandbox.hosting.deployment import Deployment, DeploymentFailed
from peagle.sandbox.hosting.spec import Order
from peagle.sandbox.sagemaker.resources import EndpointConfig

LOCK = threading.RLock()
STAND_IN_TAG = "peagle:stand-in"
ENGINE_TAG = "peagle:engine"
"""``vllm 0.28.0``, when the image names another version."""

_SERVING = ("InService", "Updating")


class Endpoint(FakeEndpoint):
    """An endpoint, the engine that serves it, and the one that is coming up."""

    failure_reason: str | None  # type: ignore[assignment]

    def __init__(
        self,
        account_id: str,
        region_name: str,
        name: str,
        config: EndpointConfig,
        tags: list[dict[str, str]] | None,
    ) -> None:
        super().__init__(
            account_id=account_id,
            region_name=region_name,
            endpoint_name=name,
            endpoint_config_name=config.endpoint_config_name,
            production_variants=config.production_variants,
            data_capture_config={},
            tags=list(tags or []),
        )
        self.config = config
        self.coming_config: EndpointConfig | None = None
        self.deployment: Deployment | None = None
        self.coming: Deployment | None = None
        self.deployment_config: dict[str, Any] | None = None
        self._changed_since = self.creation_time
        self._thread: threading.Thread | None = None

    @property
    def configs(self) -> tuple[EndpointConfig, ...]:
        """The configurations in use: one, or two during an update."""
        return (self.config, self.coming_config) if self.coming_config else (self.config,)

    @property
    def is_busy(self) -> bool:
        """Whether AWS would refuse another change now."""
        return self.endpoint_status in ("Creating", "Updating", "Deleting")

    def is_created(self) -> bool:
        """For CloudFormation: when it serves."""
        return self.serving is not None

    @property
    def serving(self) -> Deployment | None:
        """The engine that answers invocations now."""
        return self.deployment if self.endpoint_status in _SERVING else None

    def begin_creating(self, order: Order, deployment_config: dict[str, Any] | None) -> None:
        """Start the engine; the endpoint follows it."""
        self.deployment_config = deployment_config
        self._begin("Creating", self._bring_up, Deployment(order))

    def begin_updating(
        self, order: Order, config: EndpointConfig, deployment_config: dict[str, Any] | None
    ) -> None:
        """Start the new engine beside the old one."""
        self.coming_config = config
        self.deployment_config = deployment_config
        self._begin("Updating", self._bring_up, Deployment(order))

    def begin_deleting(self, gone: Callable[[], object]) -> None:
        """End the engine, then call ``gone``."""

        def end() -> None:
            self.end()
            with LOCK:
                gone()

        self._begin("Deleting", end)

    def join(self) -> None:
        """Wait for the change that is going on."""
        if self._thread:
            self._thread.join()

    def end(self) -> None:
        """End every engine of this endpoint, and return when they are gone."""
        for deployment in (self.coming, self.deployment):
            if deployment:
                deployment.end()

    @property
    def response_object(self) -> dict[str, Any]:
        """DescribeEndpoint's answer, without empty members."""
        answer = {
            "EndpointName": self.endpoint_name,
            "EndpointArn": self.arn,
            "EndpointConfigName": self.endpoint_config_name,
            "ProductionVariants": self.production_variants,
            "EndpointStatus": self.endpoint_status,
            "FailureReason": self.failure_reason,
            "CreationTime": self.creation_time,
            "LastModifiedTime": self.last_modified_time,
            "LastDeploymentConfig": self.deployment_config,
            "AsyncInferenceConfig": self.config.async_inference_config,
            "PendingDeploymentSummary": self._pending(),
        }
        return {name: value for name, value in answer.items() if value}

    def _pending(self) -> dict[str, Any] | None:
        if self.coming_config is None:
            return None
        return {
            "EndpointConfigName": self.coming_config.endpoint_config_name,
            "ProductionVariants": self._process_production_variants(
                self.coming_config.production_variants
            ),
            "StartTime": self._changed_since,
        }

    def _begin(self, status: str, work: Callable[..., None], *given: Deployment) -> None:
        self.endpoint_status = status
        self.failure_reason = None
        self.last_modified_time = self._changed_since = utcnow()
        self.coming = given[0] if given else None
        name = f"{status} {self.endpoint_name}"
        self._thread = threading.Thread(target=work, args=given, name=name, daemon=True)
        self._thread.start()

    def _bring_up(self, deployment: Deployment) -> None:
        try:
            deployment.start(on_chosen=self._tag)
        except DeploymentFailed as failure:
            self._settle_failure(str(failure))
        except Exception:  # a bug of ours must not leave the endpoint in Creating for ever
            traceback.print_exc()
            deployment.end()
            self._settle_failure("The sandbox failed; its log says why (daemon.log).")
        else:
            self._settle_success(deployment)

    def _settle_success(self, deployment: Deployment) -> None:
        with LOCK:
            old, self.deployment, self.coming = self.deployment, deployment, None
            if self.coming_config:
                self.config, self.coming_config = self.coming_config, None
                self.endpoint_config_name = self.config.endpoint_config_name
                self.production_variants = self._process_production_variants(
                    self.config.production_variants
                )
        if old:
            old.drain()
            old.end()
        self._settle("InService")

    def _settle_failure(self, reason: str) -> None:
        with LOCK:
            self.coming = self.coming_config = None
            self.failure_reason = reason[:1024]
            self._settle("InService" if self.deployment else "Failed")

    def _settle(self, status: str) -> None:
        with LOCK:
            self.endpoint_status = status
            self.last_modified_time = utcnow()

    def _tag(self, chosen: Deployment) -> None:
        """Say in tags what runs instead of what was asked for."""
        engine = f"vllm {chosen.other_engine}" if chosen.other_engine else None
        told = {STAND_IN_TAG: chosen.stand_in, ENGINE_TAG: engine}
        with LOCK:
            kept = [tag for tag in self.tags if tag["Key"] not in told]
            self.tags = kept + [{"Key": k, "Value": v} for k, v in told.items() if v]
