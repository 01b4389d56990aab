"""Operations that the sandbox refuses on demand, so that a refusal can be seen without an account.

Permissions are not checked in the sandbox; here somebody says which operation is denied or
throttled. It works for services whose requests name their operation in ``X-Amz-Target``: prices,
quotas, SageMaker, logs.
"""

from __future__ import annotations

DENIED = "AccessDeniedException"

_CODES: dict[str, str] = {}


def set_fault(operation: str, code: str) -> None:
    """Answer every call of ``operation`` (``GetProducts``) with this error code; "" ends it."""
    if code:
        _CODES[operation] = code
    else:
        _CODES.pop(operation, None)


def fault_of(target: str) -> tuple[str, str] | None:
    """The error code and message for a request with this ``X-Amz-Target``, if it is to fail."""
    operation = target.rpartition(".")[2]
    code = _CODES.get(operation)
    if code is None:
        return None
    if code == DENIED:
        return code, f"User is not authorized to call {operation}: the sandbox was told to deny it"
    return code, f"{operation}: the sandbox was told to answer so"


def reset() -> None:
    """Nothing is refused on demand any more."""
    _CODES.clear()
