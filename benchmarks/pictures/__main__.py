"""Writes the README's plots from evidence of the catalogue: ``python -m benchmarks.pictures``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from peagle.bench.chart import beside
from peagle.bench.plots import Plots
from peagle.bench.results import read_result

FOLDER = Path(__file__).parent
EVIDENCE = "speed-gpt-oss-20b-h200.json"
NAME = "gpt-oss-20b-h200.svg"
WORKLOADS = {
    "short-prompt": "short prompts (128 tokens in, 400 out)",
    "long-prompt": "long prompts (2,048 tokens in, 256 out)",
}


def picture() -> str:
    """The speed of each K against no speculation by load, for two workloads, as SVG."""
    result, intervals = read_result(FOLDER.parents[1] / "model_catalog" / "evidence" / EVIDENCE)
    plots = Plots(result.rows, intervals)
    charts = []
    for name, title in WORKLOADS.items():
        rows = [row for row in result.rows if row.load.workload.name == name]
        charts.append(replace(plots.gain(rows), title=f"Speed with {title}"))
    server = result.server
    return beside(
        charts, f"GPT-OSS-20B with P-EAGLE on {server.gpu}, vLLM {server.vllm}, imposed acceptance"
    )


if __name__ == "__main__":
    (FOLDER / NAME).write_text(picture(), encoding="utf-8")
    print(f"{NAME}: {len(picture()):,} bytes")
