"""The VPC as EC2 describes it: subnets, security groups, routes and endpoints. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from peagle.aws.client import Aws
from peagle.aws.errors import Missing

Route = Literal["known", "none", "unknown"]
"""Of a subnet to a destination: by a VPC endpoint or a NAT gateway, none, or through something that
EC2 does not describe, such as a transit gateway or an appliance."""

_EVERYWHERE = ("0.0.0.0/0", "::/0")
_HTTPS = 443


@dataclass(frozen=True)
class Subnet:
    """A subnet: its VPC and free addresses."""

    vpc: str
    free_addresses: int


@dataclass(frozen=True)
class SecurityGroup:
    """A security group, and whether a rule lets requests to port 443 leave, wherever to."""

    vpc: str
    lets_https_out: bool


def find_subnets(aws: Aws, ids: Sequence[str]) -> dict[str, Subnet]:
    """Those of the subnets that exist, by id. Raises AccessDenied and CloudError."""
    subnets = _describe(aws, "describe_subnets", "Subnets", "SubnetIds", ids)
    return {
        subnet["SubnetId"]: Subnet(subnet["VpcId"], int(subnet.get("AvailableIpAddressCount") or 0))
        for subnet in subnets
    }


def find_security_groups(aws: Aws, ids: Sequence[str]) -> dict[str, SecurityGroup]:
    """Those of the groups that exist, by id. Raises AccessDenied and CloudError."""
    groups = _describe(aws, "describe_security_groups", "SecurityGroups", "GroupIds", ids)
    return {
        group["GroupId"]: SecurityGroup(
            group.get("VpcId", ""), any(map(_allows_https, group["IpPermissionsEgress"]))
        )
        for group in groups
    }


def _describe(
    aws: Aws, operation: str, key: str, parameter: str, ids: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The descriptions of those that exist: EC2 refuses a request that names another one too."""
    for resource_id in ids:
        with suppress(Missing):
            yield from aws.call("ec2", operation, **{parameter: [resource_id]})[key]


def _allows_https(rule: Mapping[str, Any]) -> bool:
    ports = range(rule.get("FromPort", 0), rule.get("ToPort", 65535) + 1)
    protocol = rule.get("IpProtocol")
    return protocol == "-1" or (protocol == "tcp" and _HTTPS in ports)


@dataclass(frozen=True)
class Routes:
    """The routes of one subnet: to S3, and to the internet."""

    s3: Route
    internet: Route


def find_routes(aws: Aws, vpc: str, subnets: Sequence[str]) -> dict[str, Routes]:
    """The routes of the subnets of one VPC. Raises AccessDenied and CloudError."""
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
    routes = {}
    for subnet in subnets:
        table = by_subnet.get(subnet, main)
        internet = _to_internet(table)
        is_near = has_interface or table.get("RouteTableId") in with_gateway
        routes[subnet] = Routes("known" if is_near else internet, internet)
    return routes


def _to_internet(table: Mapping[str, Any]) -> Route:
    """SageMaker's network interfaces have no public address, so an internet gateway serves them
    nothing."""
    for route in table.get("Routes") or ():
        everywhere = {route.get("DestinationCidrBlock"), route.get("DestinationIpv6CidrBlock")}
        if everywhere.isdisjoint(_EVERYWHERE) or route.get("State") == "blackhole":
            continue
        if route.get("NatGatewayId"):
            return "known"
        if not str(route.get("GatewayId", "")).startswith(("igw-", "local")):
            return "unknown"
    return "none"
