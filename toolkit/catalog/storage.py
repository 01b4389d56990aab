"""What keeping weights in S3 costs: the table ``storage.yaml``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

from pydantic import Field

from toolkit.catalog.entry import Entry
from toolkit.catalog.rules import Broken

GB = 2**30
"""Bytes of a GB as S3 bills it."""


class StoragePrice(Entry):
    """S3 Standard in one region, for the first 50 TB."""

    region: str
    usd_per_gb_month: float = Field(gt=0)
    date: date
    source: str

    def month_usd(self, size: int) -> float:
        """What ``size`` bytes cost in a month."""
        return size / GB * self.usd_per_gb_month


class StorageTable(Entry):
    """All prices of storage that are known."""

    checked: date
    s3_standard: tuple[StoragePrice, ...]

    def price_in(self, region: str) -> StoragePrice | None:
        """The price in ``region``; ``None`` when it is not known."""
        return next((price for price in self.s3_standard if price.region == region), None)


def broken_in_storage(table: StorageTable, _path: Path) -> Iterator[Broken]:
    """What is wrong with the table: a region that stands twice."""
    seen: set[str] = set()
    for number, price in enumerate(table.s3_standard):
        if price.region in seen:
            yield ("s3_standard", number, "region"), f"{price.region} stands twice", "keep one"
        seen.add(price.region)
