"""A VPC as EC2 describes it: two subnets that reach S3 and the internet, and a security group."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

SUBNETS = ("subnet-0a1b2c3d", "subnet-0a1b2c3e")
GROUP = "sg-0a1b2c3d"
VPC_OPTIONS = {"subnets": SUBNETS, "security_groups": (GROUP,)}


def service_error(code: str, message: str, operation: str = "Op", **more: Any) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}, **more}, operation)


def acting(
    operation: str, act: Callable[[], object], nth: int = 1, times: float = 1
) -> Callable[[str], None]:
    """For the cloud's ``before`` or ``after``: what happens at the ``nth`` call of the operation,
    named as in boto3, and at the ``times - 1`` after it."""
    calls = 0

    def hook(called: str) -> None:
        nonlocal calls
        calls += called == operation
        if called == operation and nth <= calls < nth + times:
            act()

    return hook


def interrupting(operation: str, nth: int = 1) -> Callable[[str], None]:
    """Ctrl-C at the ``nth`` call."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    return acting(operation, interrupt, nth)


def refusing(
    operation: str, code: str, message: str = "refused", times: float = math.inf
) -> Callable[[str], None]:
    """AWS answers this operation with an error."""

    def refuse() -> None:
        name = "".join(part.capitalize() for part in operation.split("_"))
        raise service_error(code, message, name)

    return acting(operation, refuse, times=times)


def denied(*operations: str, code: str = "AccessDenied") -> Callable[[str], None]:
    """AWS denies these operations."""
    hooks = [refusing(operation, code, "not authorized") for operation in operations]

    def hook(called: str) -> None:
        for each in hooks:
            each(called)

    return hook


def subnet(name: str, zone: str, free: int = 250, vpc: str = "vpc-1") -> dict[str, Any]:
    return {
        "SubnetId": name, "VpcId": vpc, "AvailabilityZone": zone, "AvailableIpAddressCount": free,
    }  # fmt: skip


def group(name: str = GROUP, vpc: str = "vpc-1") -> dict[str, Any]:
    return {"GroupId": name, "VpcId": vpc}


def table(*routes: dict[str, str], subnet: str | None = None) -> dict[str, Any]:
    """A route table, of the VPC or of one subnet."""
    association = {"SubnetId": subnet} if subnet else {"Main": True}
    local = {"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local"}
    name = f"rtb-{subnet or 'main'}"
    return {
        "RouteTableId": name, "Associations": [association], "Routes": [local, *routes],
    }  # fmt: skip


def default_route(**target: str) -> dict[str, str]:
    return {"DestinationCidrBlock": "0.0.0.0/0", **target}


NAT = default_route(NatGatewayId="nat-1")
S3_GATEWAY = {
    "ServiceName": "com.amazonaws.us-east-1.s3",
    "VpcEndpointType": "Gateway",
    "RouteTableIds": ["rtb-main"],
}


@dataclass
class Network:
    """What EC2 describes. A test replaces parts of it."""

    subnets: list[dict[str, Any]] = field(
        default_factory=lambda: [
            subnet(name, f"us-east-1{zone}") for name, zone in zip(SUBNETS, "ab", strict=True)
        ]
    )
    groups: list[dict[str, Any]] = field(default_factory=lambda: [group()])
    route_tables: list[dict[str, Any]] = field(default_factory=lambda: [table(NAT)])
    endpoints: list[dict[str, Any]] = field(default_factory=lambda: [S3_GATEWAY])

    def described(self, kind: str, name: str) -> dict[str, Any]:
        """The subnet or group, or EC2's error."""
        existing, key, code = {
            "Subnets": (self.subnets, "SubnetId", "InvalidSubnetID.NotFound"),
            "SecurityGroups": (self.groups, "GroupId", "InvalidGroup.NotFound"),
        }[kind]
        for item in existing:
            if item[key] == name:
                return item
        raise service_error(code, f"The ID '{name}' does not exist", f"Describe{kind}")
