"""What renderers make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """One call of the AWS API, as boto3 takes it."""

    service: str
    operation: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class RenderedFile:
    """A file of a rendering: its path below the output folder, and its bytes."""

    path: str
    content: bytes
    executable: bool = False
