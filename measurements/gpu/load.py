"""Sends the requests of a workload to an engine, times every output token, and repeats that.

A conversation repeats its earlier turns in each prompt; only its later turns are measured.
All requests of a load are sent at once and the last response ends the repetition, so a request's
time to first token includes the prompts that the engine processes before it.
"""

from __future__ import annotations

import functools
import itertools
import operator
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

INTERVAL = 0.05
"""Repetitions end when the slowest and the fastest differ by less than this share."""
TEMPERATURE = 1.0
"""As vLLM samples by default. Sampled requests of the H200 have, in the median of all loads, 0.94
times the speed of greedy ones with GPT-OSS-20B (0.54 to 1.41), 0.97 times with Qwen3-Coder-30B."""
PERCENTILES = (50, 90, 99)
TIMES = ("ttft_seconds", "itl_seconds", "tpot_seconds")

_REQUEST_IDS = itertools.count()
_COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
    "vllm:num_preemptions": "preemptions",
    "vllm:prefix_cache_queries": "cache_queries",
    "vllm:prefix_cache_hits": "cache_hits",
}


@dataclass(frozen=True)
class Workload:
    """Requests of one size, the numbers of them to send at once, and how often.

    ``repetitions`` are the minimum and the maximum. After ``seconds`` no repetition above the
    minimum starts. Each further one of ``turns`` repeats the prompt and answer before it, and adds
    ``added_tokens``.
    """

    name: str
    prompt_tokens: int
    output_tokens: int
    concurrencies: tuple[int, ...] = (1, 8, 32, 64, 128)
    repetitions: tuple[int, int] = (3, 6)
    seconds: float = 8
    turns: int = 1
    added_tokens: int = 0


CONVERSATION = Workload(
    "conversation", 6144, 256, (1, 8, 32), repetitions=(3, 3), turns=3, added_tokens=256
)
MANY_REQUESTS = Workload("many-requests", 512, 1024, (64, 96, 128), repetitions=(2, 3))
DOCUMENT = Workload("document", 8192, 256, (1, 4, 16), repetitions=(2, 4))
WORKLOADS = (
    Workload("short-prompt", 128, 400),
    Workload("long-prompt", 2048, 256, repetitions=(2, 5)),
    Workload("long-answer", 128, 1024, concurrencies=(1, 32, 128), repetitions=(2, 3)),
)
"""The most valuable first: an interrupted measurement has those."""


@dataclass(frozen=True)
class Repetition:
    """One repetition: its counts, and the times of every request and output in seconds."""

    seconds: float
    answers: Sequence[Sequence[int]]
    counted: Mapping[str, int]
    times: Mapping[str, Sequence[float]]

    def __add__(self, later: Repetition) -> Repetition:
        """Two turns of the same conversations together; the answers are those of both."""
        return Repetition(
            self.seconds + later.seconds,
            [*self.answers, *later.answers],
            {name: count + later.counted[name] for name, count in self.counted.items()},
            {name: [*times, *later.times[name]] for name, times in self.times.items()},
        )

    def summary(self) -> dict[str, Any]:
        """The repetition as JSON, with percentiles instead of single times."""
        drafts = self.counted["drafts"]
        accepted = self.counted["accepted_tokens"]
        queries, hits = self.counted["cache_queries"], self.counted["cache_hits"]
        tokens = sum(map(len, self.answers))
        distinct = len(set(itertools.chain.from_iterable(self.answers)))
        return {
            "output_tokens_per_second": round(tokens / self.seconds, 1),
            "acceptance_length": round(1 + accepted / drafts, 3) if drafts else None,
            "cached_share": round(hits / queries, 4) if queries else None,
            "seconds": round(self.seconds, 4),
            "distinct_tokens": round(distinct / tokens, 3),
            **self.counted,
            **{name: percentiles(self.times[name]) for name in TIMES},
        }


def measure(llm: Any, workload: Workload, concurrency: int) -> dict[str, Any]:
    """The fastest repetition of one load, the interval of all, and each of them.

    One repetition before them is not counted: vLLM compiles kernels for its shapes of batch.
    """

    def once() -> dict[str, Any]:
        return converse(llm, concurrency, workload).summary()

    not_counted = once()
    tries = repeated(once, workload)
    return {
        "not_counted": not_counted["output_tokens_per_second"],
        "workload": workload.name,
        "concurrency": concurrency,
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        **fastest(tries),
        "cached_share": tries[-1]["cached_share"],
        "tries": tries,
    }


def fastest(tries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All numbers of the fastest repetition, and the tokens per second of slowest and fastest.

    Other work on the host and vLLM's compilation of kernels for a new shape of batch (about 1 s
    each) only slow a repetition down, so the fastest is nearest to an undisturbed, warm engine.
    """
    best = max(tries, key=lambda attempt: float(attempt["output_tokens_per_second"]))
    return {
        "output_tokens_per_second": best["output_tokens_per_second"],
        "low": min(attempt["output_tokens_per_second"] for attempt in tries),
        "high": best["output_tokens_per_second"],
        "repetitions": len(tries),
        "acceptance_length": best["acceptance_length"],
        **{name: best[name] for name in TIMES},
    }


def repeated(once: Callable[[], dict[str, Any]], workload: Workload) -> list[dict[str, Any]]:
    """All repetitions: the minimum, and more while their interval is wide and time is left."""
    minimum, maximum = workload.repetitions
    end = time.perf_counter() + workload.seconds
    tries: list[dict[str, Any]] = []
    while len(tries) < maximum:
        tries.append(once())
        speeds = [attempt["output_tokens_per_second"] for attempt in tries]
        narrow = max(speeds) - min(speeds) <= INTERVAL * statistics.median(speeds)
        if len(tries) >= minimum and (narrow or time.perf_counter() >= end):
            break
    return tries


def converse(llm: Any, concurrency: int, workload: Workload) -> Repetition:
    """Send ``concurrency`` prompts of random tokens at once, for each turn; the only turn, or all
    but the first together."""
    draw = random.Random()
    prompts: list[list[int]] = [[] for _ in range(concurrency)]
    added, turns = workload.prompt_tokens, []
    for _ in range(workload.turns):
        for prompt in prompts:
            prompt += [draw.randrange(1000, 100_000) for _ in range(added)]
        turns.append(generate(llm, prompts, workload.output_tokens))
        for prompt, answer in zip(prompts, turns[-1].answers, strict=True):
            prompt += answer
        added = workload.added_tokens
    return functools.reduce(operator.add, turns[1:] or turns)


def generate(llm: Any, prompts: Sequence[Sequence[int]], output_tokens: int) -> Repetition:
    """Send these prompts at once, and time each output."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = llm.llm_engine
    parameters = SamplingParams(
        temperature=TEMPERATURE,
        max_tokens=output_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    before = counters(llm)
    sent: dict[str, float] = {}
    outputs: dict[str, list[tuple[float, int]]] = {}
    answers: dict[str, list[int]] = {}
    begin = now = time.perf_counter()
    for prompt in prompts:
        name = str(next(_REQUEST_IDS))
        sent[name], outputs[name], answers[name] = time.perf_counter(), [], []
        engine.add_request(name, {"prompt_token_ids": list(prompt)}, parameters)
    while engine.has_unfinished_requests():
        step = engine.step()
        now = time.perf_counter()
        for output in step:
            made = output.outputs[0].token_ids
            answers[output.request_id] += made
            outputs[output.request_id].append((now, len(made)))
    after = counters(llm)
    return Repetition(
        seconds=now - begin,
        answers=list(answers.values()),
        counted={name: after[name] - before[name] for name in after},
        times=request_times(sent, outputs),
    )


def request_times(
    sent: Mapping[str, float], outputs: Mapping[str, Sequence[tuple[float, int]]]
) -> dict[str, list[float]]:
    """TTFT and TPOT of every request and the times between its outputs (ITL), in seconds.

    ``outputs`` are the times and the numbers of tokens of each request's outputs; with speculation
    one output has several tokens.
    """
    times: dict[str, list[float]] = {name: [] for name in TIMES}
    for name, all_made in outputs.items():
        made = [(at, tokens) for at, tokens in all_made if tokens]
        if not made:
            continue
        first, last = made[0][0], made[-1][0]
        times["ttft_seconds"].append(first - sent[name])
        times["itl_seconds"] += [
            later - earlier for (earlier, _), (later, _) in itertools.pairwise(made)
        ]
        if (rest := sum(tokens for _, tokens in made[1:])) > 0:
            times["tpot_seconds"].append((last - first) / rest)
    return times


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The mean, ``p50``, ``p90`` and ``p99`` of these seconds; empty without values."""
    if not values:
        return {}
    several = values if len(values) > 1 else [*values, *values]
    cuts = statistics.quantiles(several, n=100, method="inclusive")
    result = {f"p{percent}": round(cuts[percent - 1], 6) for percent in PERCENTILES}
    return {"mean": round(statistics.fmean(values), 6), **result}


def counters(llm: Any) -> dict[str, int]:
    """The engine's counts of drafts, accepted tokens and preemptions so far."""
    values = dict.fromkeys(_COUNTERS.values(), 0)
    for metric in llm.get_metrics():
        if metric.name in _COUNTERS:
            values[_COUNTERS[metric.name]] += int(metric.value)
    return values
