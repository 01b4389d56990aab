"""What is said of a region that is not known."""

from __future__ import annotations

from collections.abc import Collection

from toolkit.errors import nearest

USUAL = ("us-east-1", "us-west-2", "us-east-2", "eu-west-1", "ap-northeast-1")
"""Named where nothing is near: large ones, in which most instance types are offered."""

ALL_REGIONS = "https://docs.aws.amazon.com/general/latest/gr/sagemaker.html"


def region_hint(region: str, known: Collection[str]) -> str:
    """The known regions nearest to ``region``; else some of them, and where all are listed."""
    usual = [name for name in USUAL if name in known] or sorted(known)[: len(USUAL)]
    return nearest(region, known) or f"such as {', '.join(usual)}; all of them: {ALL_REGIONS}"
