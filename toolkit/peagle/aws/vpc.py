"""The VPC as EC2 describes it: subnets, security groups, routes and endpoints. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import Missing

_EVERYWHERE = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True)
class Subnet:
    """A subnet: its VPC and free addresses."""

    vpc: str
    free_addresses: int


def find_subnets(aws: Aws, ids: Sequence[str]) -> dict[str, Subnet]:
    """Those of the subnets that exist, by id. Raises AccessDenied and CloudError."""
    subnets = _describe(aws, "describe_subnets", "Subnets", "SubnetIds", ids)
    return {
        subnet["SubnetId"]: Subnet(subnet["VpcId"], int(subnet.get("AvailableIpAddressCount") or 0))
        for subnet in subnets
    }


def find_security_groups(aws: Aws, ids: Sequence[str]) -> dict[str, str]:
    """The VPCs of those of the groups that exist, by id. Raises AccessDenied and CloudError."""
    groups = _describe(aws, "describe_security_groups", "SecurityGroups", "GroupIds", ids)
    return {group["GroupId"]: group.get("VpcId", "") for group in groups}


def _describe(
    aws: Aws, operation: str, key: str, parameter: str, ids: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The descriptions of those that exist: EC2 refuses a request that names another one too."""
    for resource_id in ids:
        with suppress(Missing):
            yield from aws.call("ec2", operation, **{parameter: [resource_id]})[key]


def find_isolated(aws: Aws, vpc: str, subnets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the subnets of one VPC without a route to S3, and those without one to the internet.
    Raises AccessDenied and CloudError."""
    in_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    tables = aws.call("ec2", "describe_route_tables", Filters=in_vpc)["RouteTables"]
    endpoints = aws.call("ec2", "describe_vpc_endpoints", Filters=in_vpc)["VpcEndpoints"]
    to_s3 = [
        endpoint for endpoint in endpoints if endpoint["ServiceName"].endswith(f".{aws.region}.s3")
    ]
    has_interface = any(endpoint.get("VpcEndpointType") == "Interface" for endpoint in to_s3)
    with_gateway = {table for endpoint in to_s3 for table in endpoint.get("RouteTableIds") or ()}
    by_subnet, main = {}, {}
    for table in tables:
        for association in table.get("Associations") or ():
            by_subnet[association.get("SubnetId")] = table
            if association.get("Main"):
                main = table
    used = {subnet: by_subnet.get(subnet, main) for subnet in sorted(subnets)}
    closed = [
        subnet
        for subnet, table in used.items()
        if not any(map(_leads_out, table.get("Routes") or ()))
    ]
    no_s3 = [name for name in closed if used[name].get("RouteTableId") not in with_gateway]
    return [] if has_interface else no_s3, closed


def _leads_out(route: Mapping[str, Any]) -> bool:
    """Whether it is a default route through a NAT gateway, or something that EC2 does not describe.
    SageMaker's network interfaces have no public address: an internet gateway serves them
    nothing."""
    everywhere = {route.get("DestinationCidrBlock"), route.get("DestinationIpv6CidrBlock")}
    through = str(route.get("GatewayId", ""))
    is_open = route.get("State") != "blackhole" and not through.startswith(("igw-", "local"))
    return is_open and not everywhere.isdisjoint(_EVERYWHERE)
