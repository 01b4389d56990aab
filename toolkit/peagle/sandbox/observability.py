"""What an endpoint tells CloudWatch: the log of each engine, and the metrics of ``AWS/SageMaker``.

moto keeps metrics as series of numbers, and alarms and metric filters as they were put.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moto.cloudwatch.models import Statistics, cloudwatch_backends
from moto.logs import urls as logs_urls
from moto.logs.exceptions import ResourceNotFoundException
from moto.logs.models import logs_backends
from moto.logs.responses import LogsResponse

from peagle.engine_log import log_fields
from peagle.sandbox.client import ACCOUNT
from peagle.store import private_folder

_SAMPLE_SECONDS = 1.0
_KEPT_POINTS = 50_000
"""Data points of a region: hours of an idle endpoint, and a day of requests fills no memory."""

_KEPT_EVENTS = 5000
"""Of each stream; AWS keeps all, but a day of requests must not fill the memory."""
_POLL_SECONDS = 0.05
_EVENT_BYTES = 256 * 1024 - 26
"""PutLogEvents's limit less the 26 bytes that it counts for each event."""


@dataclass(frozen=True)
class MetricSource:
    """What publishes metrics of its requests: a variant, or a ``component`` on it."""

    region: str
    endpoint: str
    variant: str
    component: str = ""

    def publish(self, name: str, value: float) -> None:
        """Publish one value."""
        dimensions = {"EndpointName": self.endpoint, "VariantName": self.variant}
        if self.component:
            dimensions = {"InferenceComponentName": self.component}
        data = {
            "MetricName": name,
            "Value": float(value),
            "Dimensions": [{"Name": key, "Value": text} for key, text in dimensions.items()],
        }
        backend = cloudwatch_backends[ACCOUNT][self.region]
        backend.put_metric_data("AWS/SageMaker", [data])
        if len(backend.metric_data) > _KEPT_POINTS:
            del backend.metric_data[: _KEPT_POINTS // 10]


def start_sampling(running: Callable[[], Iterator[tuple[MetricSource, int]]]) -> None:
    """Publish the number of requests in progress of every instance and copy, for as long as the
    process runs: each second, on AWS every ten."""

    def sample() -> None:
        while True:
            time.sleep(_SAMPLE_SECONDS)
            for source, in_progress in running():
                each = "Copy" if source.component else "Model"
                source.publish(f"ConcurrentRequestsPer{each}", in_progress)

    threading.Thread(target=sample, name="concurrent requests", daemon=True).start()


class LogsOperations(LogsResponse):
    """moto's CloudWatch Logs, whose metric filter needs no log group and replaces none."""

    def put_metric_filter(self) -> str:
        group = self._get_param("logGroupName")
        if group not in self.logs_backend.groups:
            raise ResourceNotFoundException
        self.logs_backend.filters.delete_filter(self._get_param("filterName"), group)
        return super().put_metric_filter()


def install() -> None:
    """Let this process's moto use these operations, and percentiles such as ``p90``. Call it before
    the first request."""
    logs_urls.url_paths["{0}/$"] = LogsOperations.dispatch
    of_moto = Statistics.get_statistics_for_type

    def statistic(statistics: Statistics, name: str) -> Any:
        percent = re.fullmatch(r"p(\d{1,2}(?:\.\d{1,10})?|100)", name)
        values = sorted(statistics.metric_single_values_list)
        if percent is None or not values:
            return of_moto(statistics, name)
        return values[max(0, math.ceil(len(values) * float(percent[1]) / 100) - 1)]

    Statistics.get_statistics_for_type = statistic  # type: ignore[method-assign, assignment]


def find_alarms(region: str, names: Sequence[str]) -> list[Any]:
    """moto's metric alarms of these names; those that do not exist are left out."""
    alarms = cloudwatch_backends[ACCOUNT][region].alarms
    return [alarms[name] for name in names if name in alarms]


def set_alarms(region: str, names: Sequence[str], state: str) -> None:
    """Put these alarms into a state, such as ``ALARM``."""
    for alarm in find_alarms(region, names):
        alarm.update_state("Set by the sandbox.", "{}", state)


def stock_line(line: str) -> str:
    """A line of the toolkit's entrypoint as AWS's image writes it; "" for one that it has not.
    vLLM's own lines get their usual form back. What rejects or ends the engine stays as a line from
    the sandbox, with its fields: on AWS, vLLM says the same in its own words."""
    fields = log_fields(line)
    if not fields:
        return line
    if fields.get("from") != "engine":
        is_note = fields.get("event") in ("refused", "crash", "warning")
        return json.dumps({**fields, "from": "sandbox"}, ensure_ascii=False) if is_note else ""
    message, level = str(fields.get("message", "")), fields.get("level", "INFO")
    process = f"({fields['process']}) " if "process" in fields else ""
    if "place" not in fields:
        return f"{process}{message}"
    when = str(fields["time"])
    place = f"{level} {when[5:7]}-{when[8:10]} {when[11:19]} [{fields['place']}]"
    return f"{process}{place} {message}"


class LogTail:
    """A thread that copies the lines of a file to a log stream until ``end`` is called. ``written``
    is how a line looks in the stream; "" leaves it out."""

    def __init__(
        self, file: Path, region: str, group: str, stream: str, written: Callable[[str], str]
    ) -> None:
        self._file, self._group, self._stream, self._written = file, group, stream, written
        self._backend = logs_backends[ACCOUNT][region]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log {group}", daemon=True)

    def start(self) -> None:
        """Create the log group and the stream, and copy from the first line on."""
        private_folder(self._file.parent)
        self._file.touch()
        self._put([])
        self._thread.start()

    def end(self) -> None:
        """Copy the remaining lines and end the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        rest, is_last = b"", False
        with self._file.open("rb") as stream:
            while not is_last:
                is_last = self._ended.wait(_POLL_SECONDS)
                *lines, rest = (rest + stream.read()).split(b"\n")
                self._put([*lines, rest] if is_last else lines)

    def _put(self, lines: list[bytes]) -> None:
        texts = (
            self._written(line[:_EVENT_BYTES].decode("utf-8", "replace").rstrip()) for line in lines
        )
        now = int(time.time() * 1000)
        events = [{"timestamp": now, "message": text} for text in texts if text]
        self._backend.ensure_log_group(self._group)
        self._backend.ensure_log_stream(self._group, self._stream)
        if events:
            self._backend.put_log_events(self._group, self._stream, events)
            kept = self._backend.groups[self._group].streams[self._stream].events
            del kept[:-_KEPT_EVENTS]
