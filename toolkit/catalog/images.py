"""The address of a runtime's container image in a region's registry."""

from __future__ import annotations

from toolkit.catalog.tables import Runtime, RuntimeTable
from toolkit.errors import NotFound, nearest

_SUFFIXES = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "us-isof-": "csp.hci.ic.gov",
}
"""How the names of a partition's regions begin -> its domain; all others have amazonaws.com.
From botocore's data/partitions.json."""


def image_uri(table: RuntimeTable, runtime: Runtime, region: str) -> str:
    """``<account>.dkr.ecr.<region>.<domain>/<repository>:<tag>``.

    Raises NotFound for a region in which no account with AWS's images is known. Whether this very
    version is there, ``runtime.regions`` says; empty means that it is not known.
    """
    if region not in table.accounts:
        hint = nearest(region, table.accounts) or "give your own image with --image"
        raise NotFound(f"no account with AWS's images is known in the region {region!r}", hint)
    registry = f"{table.accounts[region]}.dkr.ecr.{region}.{domain(region)}"
    return f"{registry}/{runtime.repository}:{runtime.tag}"


def domain(region: str) -> str:
    """The domain of AWS's services in the region's partition, such as ``amazonaws.com.cn``."""
    for start, suffix in _SUFFIXES.items():
        if region.startswith(start):
            return suffix
    return "amazonaws.com"
