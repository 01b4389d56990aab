"""Addresses in the partition of the plan's region."""

from __future__ import annotations

from toolkit.catalog.images import domain


def openai_base_url(region: str, endpoint: str) -> str:
    """Where OpenAI clients reach an endpoint; ``endpoint`` may be a reference of a template."""
    return f"https://runtime.sagemaker.{region}.{domain(region)}/endpoints/{endpoint}/openai/v1"
