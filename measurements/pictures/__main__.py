"""Writes the README's plots from evidence of the catalogue: ``python -m measurements.pictures``."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from peagle.bench.result import BenchLoad, BenchRow, BenchSetting, BenchWorkload, Interval
from peagle.bench.winners import settings
from peagle.catalog import load_catalog
from peagle.catalog.schema import Speed
from peagle.cli.view.bench import draw_gain, svg
from peagle.workload import Workload

FOLDER = Path(__file__).parent
PAIR, EVIDENCE = "openai/gpt-oss-20b", "speed-gpt-oss-20b-h200.json"
NAME = "gpt-oss-20b-h200.svg"
SIZES = {
    Workload(128, 400): "short prompts (128 tokens in, 400 out)",
    Workload(2048, 256): "long prompts (2,048 tokens in, 256 out)",
}


def row_of(speed: Speed) -> BenchRow:
    """A row of evidence, from its slowest to its fastest repetition, as a row of a bench."""
    value = speed.output_tokens_per_second
    size = Workload(speed.prompt_tokens or 0, speed.output_tokens or 0)
    return BenchRow(
        setting=BenchSetting(speed.drafter, speed.k),
        load=BenchLoad(BenchWorkload("", size), speed.concurrency, speed.concurrency),
        repetitions=(),
        tokens_per_second=Interval(value, speed.low or value, speed.high or value),
        ttft=None,
        itl=None,
        tpot=None,
        prompt_tokens=size.prompt_tokens,
        output_tokens=size.output_tokens,
    )


def picture() -> str:
    """The speed of each K against no speculation by load, for two sizes of requests, as SVG."""
    (run,) = [run for run in load_catalog().speeds[PAIR] if run.file == EVIDENCE]
    rows = [row_of(speed) for speed in run.speeds]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle(f"GPT-OSS-20B with P-EAGLE on {run.gpu}, vLLM {run.vllm}, imposed acceptance")
    for axes, (size, title) in zip(figure.subplots(1, 2), SIZES.items(), strict=True):
        drawn = [row for row in rows if row.load.workload.size == size]
        draw_gain(axes, drawn, settings(rows), f"Speed with {title}")
    return svg(figure)


if __name__ == "__main__":
    (FOLDER / NAME).write_text(picture(), encoding="utf-8")
    print(f"{NAME}: {len(picture()):,} bytes")
