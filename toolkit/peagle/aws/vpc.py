"""The VPC as EC2 describes it: subnets, routes and endpoints. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peagle.aws.client import Aws

_EVERYWHERE = ("0.0.0.0/0", "::/0")


def find_isolated(aws: Aws, subnets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the subnets of one VPC without a route to S3, and those without one to the internet.
    Raises AccessDenied, and Missing for a subnet that does not exist."""
    described = aws.call("ec2", "describe_subnets", SubnetIds=list(subnets))["Subnets"]
    in_vpc = [{"Name": "vpc-id", "Values": sorted({subnet["VpcId"] for subnet in described})}]
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
