"""AWS on this machine: a moto server whose SageMaker endpoints really start the plan's engine.

    client    start, stop and ask it, from any program          state     what is written down
    server    the daemon itself                                 front     which call goes where
    sagemaker what moto's SageMaker lacks for GPU endpoints     services  quotas, prices, ...
    hosting   from an endpoint configuration to a live engine   runtime   invoking it, streamed

Only ``server`` and what it uses imports moto; this package's own names do not.
"""

from toolkit.sandbox.client import (
    ACCOUNT,
    EXECUTION_ROLE,
    HINDERING_VARIABLES,
    Address,
    EndpointStatus,
    Status,
    Stopped,
    ensure_started,
    not_running,
    running,
    set_quota,
    status,
    stop,
)

__all__ = [
    "ACCOUNT",
    "EXECUTION_ROLE",
    "HINDERING_VARIABLES",
    "Address",
    "EndpointStatus",
    "Status",
    "Stopped",
    "ensure_started",
    "not_running",
    "running",
    "set_quota",
    "status",
    "stop",
]
