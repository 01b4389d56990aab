"""Writes the README's plots from evidence of the catalogue: ``python -m measurements.pictures``."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from peagle.bench.evidence import read_result
from peagle.bench.winners import settings
from peagle.cli.view.bench import draw_gain, svg

FOLDER = Path(__file__).parent
EVIDENCE = "speed-gpt-oss-20b-h200.json"
NAME = "gpt-oss-20b-h200.svg"
WORKLOADS = {
    "short-prompt": "short prompts (128 tokens in, 400 out)",
    "long-prompt": "long prompts (2,048 tokens in, 256 out)",
}


def picture() -> str:
    """The speed of each K against no speculation by load, for two workloads, as SVG."""
    result = read_result(FOLDER.parents[1] / "model_catalog" / "evidence" / EVIDENCE)
    server = result.server
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle(
        f"GPT-OSS-20B with P-EAGLE on {server.gpu}, vLLM {server.vllm}, imposed acceptance"
    )
    for axes, (name, title) in zip(figure.subplots(1, 2), WORKLOADS.items(), strict=True):
        rows = [row for row in result.rows if row.load.workload.name == name]
        draw_gain(axes, rows, settings(result.rows), f"Speed with {title}")
    return svg(figure)


if __name__ == "__main__":
    (FOLDER / NAME).write_text(picture(), encoding="utf-8")
    print(f"{NAME}: {len(picture()):,} bytes")
