"""What supervisor and engine tell each other over their socket, a line each.

The engine: ``hello`` (it can be drained), ``healthy``, ``idle`` (all is answered), and
``failed REASON``. The supervisor: ``drain``.
"""

SOCKET_VARIABLE = "PEAGLE_SUPERVISOR_SOCKET"
"""The number of the engine's end of the socket."""

STARTED_VARIABLE = "PEAGLE_ENGINE_STARTED"
"""When the engine was started, in seconds of the machine's monotonic clock."""

HELLO = "hello"
HEALTHY = "healthy"
IDLE = "idle"
FAILED = "failed"
DRAIN = "drain"
