"""The performance model against measured conversations, and the fit of its one constant for them.

    python -m measurements.conversations          # errors by row, and the constant that fits best

``cached_prefill`` is fitted to the rows with the prefix cache of ``conversations.json``, except for
those in ``held_out``. The prompts of these rows are turns of conversations: all but the last 256
tokens of each are in the cache.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measurements.speed_rows import catalog
from peagle.catalog.find import find_drafter, find_instance, find_pair
from peagle.planning.load import Load
from peagle.workload import Workload

FILE = Path(__file__).with_suffix(".json")
_CONTEXT, _REQUESTS = 16_384, 64
_FACTORS = [1 + number / 20 for number in range(41)]


@dataclass(frozen=True)
class Conversations:
    """A measured row: concurrent conversations of a pair, and its tokens per second."""

    pair: str
    k: int
    cache: bool
    load: int
    tokens_per_second: float
    held_out: bool

    def estimate(self, factor: float | None = None) -> float:
        """The model's tokens per second; ``factor`` in place of the constant of the catalogue."""
        document, catalogue = json.loads(FILE.read_text()), catalog()
        if factor is not None:
            model = catalogue.speed_model
            constants = model.constants.model_copy(update={"cached_prefill": factor})
            changed = model.model_copy(update={"constants": constants})
            catalogue = replace(catalogue, speed_model=changed)
        target = find_pair(catalogue, self.pair).target
        drafter = find_drafter(target, "p-eagle") if self.k else None
        cached = document["cached_prompt_tokens"] if self.cache else 0
        size = Workload(document["prompt_tokens"], document["output_tokens"], cached)
        vllm = document["vllm"]
        settings = {"no-enable-prefix-caching": "" if self.cache else "true"}
        load = Load(target, vllm, _CONTEXT, _REQUESTS, catalogue, settings, size)
        instance = find_instance(catalogue.instances, document["instance_type"])
        engine = load.engine(instance, 1, drafter, self.k)
        speed = load.performance(engine, drafter, self.k, self.load)
        return speed.tokens_per_second or 0.0

    def error(self, factor: float | None = None) -> float:
        """How much the estimate is too high, as a share of the measured speed."""
        return self.estimate(factor) / self.tokens_per_second - 1


def measured() -> Iterator[Conversations]:
    """The rows of ``conversations.json``."""
    document = json.loads(FILE.read_text())
    held_out = [tuple(key) for key in document["held_out"]]
    for row in document["rows"]:
        for load, speed in zip(document["loads"], row["tokens_per_second"], strict=True):
            left_out = row["cache"] and (row["pair"], row["k"], load) in held_out
            yield Conversations(row["pair"], row["k"], row["cache"], load, speed, left_out)


def fitted(rows: Sequence[Conversations]) -> float:
    """The factor with the least squares of the relative errors of these rows."""

    def squares(factor: float) -> float:
        return sum(math.log1p(row.error(factor)) ** 2 for row in rows)

    return min(_FACTORS, key=squares)


def main() -> None:
    rows = list(measured())
    errors = [row.error() for row in rows]
    for row, error in zip(rows, errors, strict=True):
        setting = f"{row.pair} K={row.k}, cache {'on' if row.cache else 'off'}"
        left_out = ", held out" if row.held_out else ""
        print(
            f"{setting}, {row.load}: {row.tokens_per_second:,.0f} measured, {error:+.0%}{left_out}"
        )
    sizes = [abs(error) for error in errors]
    print(f"median {statistics.median(sizes):.0%}, largest {max(sizes):.0%}")
    best = fitted([row for row in rows if row.cache and not row.held_out])
    print(f"cached_prefill: {best:.2e} fits best")


if __name__ == "__main__":
    main()
