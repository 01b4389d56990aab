"""A result as ``peagle bench`` makes it, with numbers that are easy to check."""

from dataclasses import replace

from peagle.bench.result import (
    NO_SPECULATION,
    BenchedServer,
    BenchHost,
    BenchLoad,
    BenchResult,
    BenchRow,
    BenchSetting,
    BenchWorkload,
    Interval,
    MeasuredAcceptance,
    Repetition,
    Times,
)
from peagle.text import usd_per_million
from peagle.workload import Workload

ALONE = NO_SPECULATION
K3, K7 = BenchSetting("p-eagle", 3), BenchSetting("p-eagle", 7)
SHORT = BenchWorkload("short-prompt", Workload(128, 400))
LONG = BenchWorkload("long-prompt", Workload(2_048, 256))
SPEEDS = {
    (ALONE, 1): 300.0, (ALONE, 8): 2_000.0, (ALONE, 64): 16_000.0, (K3, 1): 500.0,
    (K3, 8): 3_000.0, (K3, 64): 14_000.0, (K7, 1): 700.0, (K7, 8): 2_900.0, (K7, 64): 9_000.0,
}  # fmt: skip
USD = 6.0


def times(mean: float, count: int = 8) -> Times:
    return Times(mean, mean, 1.2 * mean, 2 * mean, count)


def repetition(speed: float, load: int) -> Repetition:
    tokens = 400 * 4 * load
    itl = times(load / speed)
    return Repetition(
        seconds=tokens / speed,
        requests=4 * load,
        output_tokens=tokens,
        prompt_tokens=128 * 4 * load,
        ttft=times(0.01 * load),
        itl=itl,
        tpot=itl,
        request_seconds=times(400 * load / speed),
    )


def row(
    setting: BenchSetting,
    load: int,
    speed: float,
    workload: BenchWorkload = SHORT,
    spread: float = 0.04,
) -> BenchRow:
    """Three repetitions, of which the mean is ``speed``."""
    rates = tuple(0.8 * 0.6**at for at in range(setting.k))
    accepted = MeasuredAcceptance(1 + sum(rates), rates, 5_000) if setting.k else None
    speeds = (speed * (1 - spread), speed, speed * (1 + spread))
    tries = tuple(repetition(rate, load) for rate in speeds)
    return BenchRow(
        setting=setting,
        load=BenchLoad(workload, load, 4 * load),
        repetitions=tries,
        tokens_per_second=Interval(speed, speeds[0], speeds[2]),
        ttft=times(0.01 * load),
        itl=tries[1].itl,
        tpot=tries[1].tpot,
        prompt_tokens=workload.size.prompt_tokens,
        output_tokens=workload.size.output_tokens,
        acceptance=accepted,
        usd_per_million_tokens=usd_per_million(USD, speed),
    )


ROWS = tuple(row(setting, load, speed) for (setting, load), speed in SPEEDS.items())
RESULT = BenchResult(
    server=BenchedServer(
        name="gpt-oss-20b",
        where="local",
        base_url="http://127.0.0.1:8000/v1",
        model="openai/gpt-oss-20b",
        pair="openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE",
        vllm="0.28.0",
        gpu="H200",
        gpu_count=1,
        tensor_parallel_size=1,
        driver="580.159.04",
        cuda="13.0",
    ),
    started="2026-11-22T15:00:00+00:00",
    toolkit="0.2.0",
    sender=("aiperf", "0.3.0"),
    host=BenchHost("Linux 6.1", "3.12.3", 64, "Intel(R) Xeon(R)"),
    command=("peagle", "bench", "gpt-oss-20b", "--sweep", "k=none,3,7", "--concurrency", "1,8,64"),
    rows=ROWS,
    usd_per_hour=USD,
    price_source="--usd-per-hour",
)


def two_workloads() -> BenchResult:
    """Speculation never pays with the second workload."""
    more = (row(ALONE, 1, 300.0, LONG), row(K3, 1, 200.0, LONG))
    return replace(RESULT, rows=(*ROWS, *more))
