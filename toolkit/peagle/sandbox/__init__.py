"""AWS on this machine: a moto server whose SageMaker endpoints really start the plan's engine.

    client    start, stop and ask it, from any program          state     what is written down
    server    the daemon itself                                 front     which call goes where
    sagemaker what moto's SageMaker lacks for GPU endpoints     services  quotas, prices, ...
    hosting   from an endpoint configuration to a live engine   runtime   invoking it, streamed

Only ``server`` and what it uses imports moto; this package's own names do not.

It does not: check signatures or permissions; run more than one engine per endpoint (the first
variant's first container stands for all of them); restart an engine that dies; scale; have
inference components, asynchronous calls or data capture; remember anything once it has ended.
"""

from peagle.sandbox.client import (
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
    set_fault,
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
    "set_fault",
    "set_quota",
    "status",
    "stop",
]
