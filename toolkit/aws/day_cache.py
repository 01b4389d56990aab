"""What AWS said today, so that it is not asked again: prices and quotas, kept for a day.

    $PEAGLE_HOME/online/<place>/<region>/<name>.json

``place`` is an account id, ``amazon`` for what is the same for all accounts, ``sandbox``, or a
hash of another address that answers instead of AWS. A file that is damaged, of another version,
older than a day or from the future counts as not there, and one that cannot be written is missed
by nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from pathlib import Path
from typing import Any

from toolkit.aws.session import Aws
from toolkit.home import home, read_json, write_json

DAY_SECONDS = 24 * 3600.0

_FORMAT = 1
_UNSAFE = re.compile(r"[^A-Za-z0-9.\-]")


class DayCache:
    """The answers of one region and one place."""

    def __init__(self, place: str, region: str) -> None:
        self._folder = home() / "online" / _UNSAFE.sub("_", place) / _UNSAFE.sub("_", region)

    def get(self, name: str) -> tuple[Any, float] | None:
        """What was kept under ``name`` in the last 24 hours, and when it was asked (epoch)."""
        try:
            document = read_json(self._file(name))
            asked = float(document["asked"])
            good = document["format"] == _FORMAT and 0 <= time.time() - asked < DAY_SECONDS
            return (document["value"], asked) if good else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, name: str, value: Any) -> float:
        """Keep ``value`` under ``name``; gives the time that it bears."""
        asked = time.time()
        with contextlib.suppress(OSError):
            document = {"format": _FORMAT, "asked": asked, "value": value}
            write_json(self._file(name), document)
        return asked

    def _file(self, name: str) -> Path:
        return self._folder / f"{_UNSAFE.sub('_', name)}.json"


def for_everybody(aws: Aws, service: str) -> DayCache:
    """The cache of what ``service`` tells everybody alike, such as prices."""
    return DayCache(aws.own_scope or _address(aws, service) or "amazon", aws.region)


def for_account(aws: Aws, service: str) -> DayCache:
    """The cache of what ``service`` tells this account; the account must be known for it."""
    return DayCache(aws.own_scope or _address(aws, service) or aws.account, aws.region)


def _address(aws: Aws, service: str) -> str:
    """A hash of the address that answers, unless that is Amazon's."""
    url = str(aws.client(service).meta.endpoint_url)
    return "" if ".amazonaws." in url else hashlib.sha256(url.encode()).hexdigest()[:12]
