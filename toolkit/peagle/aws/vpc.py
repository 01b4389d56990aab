"""The VPC as EC2 describes it: subnets, security groups, routes and endpoints. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Literal

from peagle.aws.client import Aws
from peagle.aws.errors import Missing

Route = Literal["interface", "endpoint", "gateway", "none", "unknown"]
"""How a subnet reaches a destination: an interface endpoint, which has an address in the VPC, a
gateway endpoint, a NAT gateway, not at all, or through something that EC2 does not describe, such
as a transit gateway or an appliance."""

Outbound = Literal["anywhere", "vpc", "nowhere"]
"""Where requests to port 443 may go by a security group: also to public addresses, to private
addresses and other groups only, or nowhere. What a prefix list holds is not looked at: it counts as
public."""

_EVERYWHERE = ("0.0.0.0/0", "::/0")
_HTTPS = 443
_PRIVATE = tuple(
    map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)


@dataclass(frozen=True)
class Subnet:
    """A subnet: its VPC and free addresses."""

    vpc: str
    free_addresses: int


@dataclass(frozen=True)
class SecurityGroup:
    """A security group, and where its rules let requests to port 443 go."""

    id: str
    vpc: str
    https: Outbound


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
            group["GroupId"], group.get("VpcId", ""), _outbound(group["IpPermissionsEgress"])
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


def _outbound(rules: Sequence[Mapping[str, Any]]) -> Outbound:
    allowed = [
        rule
        for rule in rules
        if rule.get("IpProtocol") == "-1"
        or (
            rule.get("IpProtocol") == "tcp"
            and rule.get("FromPort", 0) <= _HTTPS <= rule.get("ToPort", 65535)
        )
    ]
    if any(map(_is_public, allowed)):
        return "anywhere"
    return "vpc" if allowed else "nowhere"


def _is_public(rule: Mapping[str, Any]) -> bool:
    """Whether the rule leads to public addresses, as far as can be seen."""
    ranges = [ip_range["CidrIp"] for ip_range in rule.get("IpRanges") or ()]
    ranges += [ip_range["CidrIpv6"] for ip_range in rule.get("Ipv6Ranges") or ()]
    if rule.get("PrefixListIds"):
        return True
    networks = [ip_network(cidr, strict=False) for cidr in ranges]
    return (not networks and not rule.get("UserIdGroupPairs")) or any(
        not any(network[0] in private and network[-1] in private for private in _PRIVATE)
        for network in networks
    )  # fmt: skip


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
        to_gateway: Route = "endpoint" if table.get("RouteTableId") in with_gateway else internet
        routes[subnet] = Routes("interface" if has_interface else to_gateway, internet)
    return routes


def _to_internet(table: Mapping[str, Any]) -> Route:
    """SageMaker's network interfaces have no public address, so an internet gateway serves them
    nothing."""
    for route in table.get("Routes") or ():
        everywhere = {route.get("DestinationCidrBlock"), route.get("DestinationIpv6CidrBlock")}
        if everywhere.isdisjoint(_EVERYWHERE) or route.get("State") == "blackhole":
            continue
        if route.get("NatGatewayId"):
            return "gateway"
        if not str(route.get("GatewayId", "")).startswith(("igw-", "local")):
            return "unknown"
    return "none"
