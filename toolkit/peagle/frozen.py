"""The base of the models of files and documents."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable and strict; an unknown key is an error, so that a misspelt key is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
