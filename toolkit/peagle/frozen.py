"""The bases of the models of files, documents and results."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Frozen(BaseModel):
    """Immutable and strict; an unknown key is an error, so that a misspelt key is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Result(Frozen):
    """What a command prints with ``--json``: each field is a key, and one that has a default is
    left out where it has no value."""

    @model_serializer(mode="wrap")
    def _write_without_empty_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            name: value
            for name, value in write(self).items()
            if value is not None or name not in fields or fields[name].is_required()
        }
