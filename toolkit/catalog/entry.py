"""What every entry of the catalogue is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?$")]
VersionRange = Annotated[
    str,
    Field(pattern=r"^(>=|<=|<|>|==)\d+\.\d+(\.\d+)?(,(>=|<=|<|>|==)\d+\.\d+(\.\d+)?)*$"),
]
ShortName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")]


class Entry(BaseModel):
    """Frozen, and an unknown key is an error: a misspelt key must not be lost in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
