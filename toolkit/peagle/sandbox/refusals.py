"""Rejections of SageMaker that the sandbox itself reacts to; clients see AWS's code and message."""

from __future__ import annotations

from moto.sagemaker.exceptions import ValidationError


class NotFoundError(ValidationError):
    """The resource does not exist."""


class RefusedForNowError(ValidationError):
    """The resource is being changed, or others depend on it: a later request may succeed."""
