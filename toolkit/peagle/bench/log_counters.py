"""Count the drafts of an endpoint whose image exposes no counters, such as AWS's own: from vLLM's
lines of statistics in the log of every instance."""

from __future__ import annotations

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.deploy.proving.statistics import StatisticsReader
from peagle.errors import EngineError, Fix
from peagle.protocol import Counters


class LogCounters:
    """Reads what all instances of the endpoint ``name`` count from now on.

    The first line of each instance may include what it drafted up to 10 s before. Every reading but
    the first waits for the statistics, up to 45 s on AWS. Raises EngineError where there is no such
    endpoint, and AccessDenied where the log may not be read.
    """

    def __init__(self, aws: Aws, name: str, clock: Clock | None = None) -> None:
        live = sagemaker.describe(aws, name)
        if live is None:
            fix = Fix("look at its state", ("peagle", "status", name))
            raise EngineError(f"the endpoint {name} does not exist", fix)
        self._instances = max(live.instance_count, 1)
        self._reader = StatisticsReader(aws, live, clock or Clock())
        self._is_first = True

    def read(self) -> Counters:
        """The counts of all instances together, of everything that was answered until now."""
        if self._is_first:
            self._reader.read()
            self._is_first = False
        else:
            self._reader.wait(self._instances)
        return sum(self._reader.counts.counted.values(), Counters(0, 0, 0))
