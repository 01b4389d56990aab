"""EventBridge Scheduler and the roles that it assumes, in the fake account."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from peagle.deploy.state import utc_moment
from tests.unit.aws.network import service_error

if TYPE_CHECKING:
    from tests.unit.aws.cloud import Cloud


class FakeScheduler:
    """``schedules`` by name, as requested; ``roles`` and their one policy by name.

    A new role can be assumed after ``role_delay`` seconds only.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.schedules: dict[str, dict[str, Any]] = {}
        self.roles: dict[str, str] = {}
        self.boundaries: dict[str, str] = {}
        self.role_delay = 0.0
        self._made: dict[str, float] = {}

    def _create_role(self, RoleName: str, **parameters: Any) -> Any:
        if RoleName in self.roles:
            raise service_error(
                "EntityAlreadyExists", f"Role with name {RoleName} already exists.", "CreateRole"
            )
        self.roles[RoleName] = ""
        if boundary := parameters.get("PermissionsBoundary"):
            self.boundaries[RoleName] = boundary
        self._made[RoleName] = self._cloud.now
        return {"Role": {"RoleName": RoleName}}

    def _put_role_policy(self, RoleName: str, PolicyName: str, PolicyDocument: str) -> Any:
        self.roles[RoleName] = PolicyDocument
        return {}

    def _delete_role_policy(self, RoleName: str, PolicyName: str) -> Any:
        self._known_role(RoleName)
        self.roles[RoleName] = ""
        return {}

    def _delete_role(self, RoleName: str) -> Any:
        self._known_role(RoleName)
        if self.roles[RoleName]:
            raise service_error("DeleteConflict", "Cannot delete entity, must delete policies")
        del self.roles[RoleName]
        return {}

    def _known_role(self, name: str) -> None:
        if name not in self.roles:
            raise service_error("NoSuchEntity", f"The role with name {name} cannot be found.")

    def _create_schedule(self, Name: str, Target: Any, **parameters: Any) -> Any:
        if Name in self.schedules:
            raise service_error(
                "ConflictException", f"Schedule {Name} already exists.", "CreateSchedule"
            )
        role = Target["RoleArn"].rpartition("/")[2]
        if role not in self.roles or self._cloud.now < self._made[role] + self.role_delay:
            raise service_error(
                "ValidationException",
                "The execution role you provide must allow AWS EventBridge Scheduler to assume the "
                "role.",
                "CreateSchedule",
            )
        self.schedules[Name] = {"Target": Target, **parameters}
        return {"ScheduleArn": f"arn:aws:scheduler:us-east-1:1:schedule/default/{Name}"}

    def _update_schedule(self, Name: str, **parameters: Any) -> Any:
        self.schedules[Name] = parameters
        return {}

    def _get_schedule(self, Name: str) -> Any:
        if Name not in self.schedules:
            raise service_error("ResourceNotFoundException", f"Schedule {Name} does not exist.")
        return {"Name": Name, **self.schedules[Name]}

    def _delete_schedule(self, Name: str) -> Any:
        if Name not in self.schedules:
            raise service_error("ResourceNotFoundException", f"Schedule {Name} does not exist.")
        del self.schedules[Name]
        return {}

    def fire(self) -> None:
        """What the scheduler does at the end time: delete the endpoint, before it the component of
        its copies, and the schedules. An endpoint with copies is not deleted yet."""
        for name, schedule in list(self.schedules.items()):
            moment = schedule["ScheduleExpression"].removeprefix("at(").removesuffix(")")
            due = utc_moment(f"{moment}Z")
            assert due is not None
            if due <= self._cloud.now and schedule["State"] == "ENABLED":
                request = json.loads(schedule["Target"]["Input"])
                components = self._cloud.components.by_name
                if component := request.get("InferenceComponentName"):
                    components.pop(component, None)
                elif request["EndpointName"] in components:
                    continue
                else:
                    self._cloud.endpoints.pop(request["EndpointName"], None)
                del self.schedules[name]
