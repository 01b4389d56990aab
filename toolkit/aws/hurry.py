"""Questions that a plan can do without: they are asked for seconds, not minutes.

Whoever does not answer is not asked twice, and after the first who cannot be reached nobody else
is asked either: one is enough to know that the way to AWS is closed.
"""

from __future__ import annotations

import time
from typing import Any

from botocore import exceptions as boto

from toolkit.aws.errors import UNREACHABLE_FIX
from toolkit.errors import CloudError

PATIENCE = (2, 3, 5)
"""Attempts, seconds to connect, seconds to read. The second attempt is for a throttled one."""

LONGEST_SECONDS = 10.0
"""So long all questions of a plan may take together; after it none is begun."""

_SILENT = (boto.ConnectionError, boto.ReadTimeoutError)


class Hurry:
    """Watches the questions of one connection, and refuses those that are no longer asked."""

    def __init__(self) -> None:
        self._unreached = ""
        self._spent = 0.0
        self._began = 0.0

    def attend(self, client: Any, service: str, region: str) -> None:
        """Watch the calls of a boto3 client. What is not asked raises CloudError."""
        place = f"{service} in {region}"

        def before(**_: Any) -> None:
            self._refuse(service)
            self._began = time.monotonic()

        def after(caught_exception: Exception | None = None, **_: Any) -> bool | None:
            now = time.monotonic()
            self._spent, self._began = self._spent + now - self._began, now
            if not isinstance(caught_exception, _SILENT):
                return None  # botocore's own rules decide
            self._unreached = place
            return False

        # The first answer counts, and handlers of a service are heard before those of all.
        name = client.meta.service_model.service_id.hyphenize()
        client.meta.events.register_first(f"before-call.{name}", before)
        client.meta.events.register_first(f"needs-retry.{name}", after)

    def _refuse(self, service: str) -> None:
        if self._unreached:
            message = f"{service} was not asked, as {self._unreached} cannot be reached"
            raise CloudError(message, UNREACHABLE_FIX)
        if self._spent >= LONGEST_SECONDS:
            message = f"{service} was not asked on, as AWS took {self._spent:.0f} s so far"
            raise CloudError(message, "repeat it later")
