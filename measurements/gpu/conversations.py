"""Conversations with the tiny pair in the container: the prefix cache with real weights.

    python -m measurements.gpu.conversations --vllm 0.28.0
    python -m measurements.gpu.conversations --cpu --python ENGINE/bin/python    # a rehearsal

The container gets the environment of `peagle plan tiny`, once with prefix caching and once without.
`peagle prove` proves it; then conversations are sent one request at a time with temperature 0.
Recorded are hits and acceptance of each turn, and how many answers are the same without the cache.
`peagle` must be on the path. Results are appended to ``conversations.json`` (``--evidence``).
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measurements.gpu import host
from measurements.gpu.container import FOR_CPU, TINY, TINY_PAIR, Container, PairFolder
from peagle.protocol import (
    Counters,
    acceptance_length,
    follow_up_body,
    parse_counters,
    parse_piece,
    request_body,
)
from peagle_serve.contract import ATTRIBUTES_HEADER, COUNTERS_ATTRIBUTE

EVIDENCE = Path(__file__).with_suffix(".json")
ABOUT = (
    "Written by measurements/gpu/conversations.py: the tiny pair with its real weights, started by "
    "peagle_serve with the environment of `peagle plan tiny`. proof: what `peagle prove --url` "
    "says. turns: drafts, acceptance length and the share of prompt tokens from the prefix cache, "
    "by turn. same_answers: of the answers with the cache, those that are the same without it."
)
CONVERSATIONS, TURNS, TOKENS = 8, 4, 64
START_SECONDS = 600.0


def measure(
    options: argparse.Namespace, root: Path, save: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """A row with prefix caching and one without, each from a start of the container.

    Rows are saved after each start, so that a host that ends early loses one row at most.
    """
    folder = PairFolder(root, TINY_PAIR)
    rows: list[dict[str, Any]] = []
    answers: list[list[str]] = []
    for cached in (True, False):
        folder.prepare()
        chosen = options.set if cached else [*options.set, "enable-prefix-caching=false"]
        path = root / f"plan-{cached}.json"
        settings = [f"--set={setting}" for setting in chosen]
        path.write_text(_peagle(["plan", TINY_PAIR, "--vllm", options.vllm, *settings, "--json"]))
        environment = {
            **json.loads(path.read_text())["environment"],
            **{name: str(place) for name, place in folder.written.items()},
            "PEAGLE_ML_ROOT": str(folder.folder / "ml"),
            **host.ENGINE_ENVIRONMENT,
            **(
                {**FOR_CPU, "SM_VLLM_BLOCK_SIZE": "32", "SM_VLLM_MAX_MODEL_LEN": "2048"}
                if options.cpu
                else {}
            ),
        }
        log = root / f"{options.vllm}-{'cached' if cached else 'without'}.log"
        container = Container(options.python, environment, log)
        try:
            start = container.wait_ready(START_SECONDS)
            url = f"http://127.0.0.1:{container.port}/v1"
            proof = json.loads(_peagle(["prove", "--url", url, "--plan", str(path), "--json"]))
            turns, texts = converse(container)
            argv = [entry["argv"] for entry in container.log_entries() if "argv" in entry]
        finally:
            container.stop()
        answers.append(texts)
        row = {"prefix_caching": cached, "start_seconds": start, "argv": argv[0][1:]}
        rows.append({**row, "proof": proof, "turns": turns})
        save(rows)
    same = sum(one == other for one, other in zip(*answers, strict=True))
    rows = [{**row, "answers": len(answers[0]), "same_answers": same} for row in rows]
    save(rows)
    return rows


def converse(container: Container) -> tuple[list[dict[str, Any]], list[str]]:
    """What each turn of the conversations counts, and all answers."""
    prompts = [one["prompt"] for one in json.loads((TINY / "prompts.json").read_text())]
    # From the end: the proof has sent the same prompts in their order.
    talks = [prompts[-1 - number :: -CONVERSATIONS] for number in range(CONVERSATIONS)]
    bodies = [request_body(talk[0], chat=True, max_tokens=TOKENS) for talk in talks]
    turns, answers = [], []
    for turn in range(1, TURNS + 1):
        before = _counters(container)
        texts = [parse_piece(_ask(container, body)).written for body in bodies]
        counted = _counters(container).since(before)
        length = acceptance_length(counted)
        turns.append(
            {
                "drafts": counted.drafts,
                "acceptance_length": length and round(length, 4),
                "prompt_tokens": counted.cache_queries,
                "cached_share": counted.cached_share and round(counted.cached_share, 4),
            }
        )
        answers += texts
        following = [talk[turn] for talk in talks]
        bodies = [follow_up_body(*one) for one in zip(bodies, texts, following, strict=True)]
    return turns, answers


def _counters(container: Container) -> Counters:
    return parse_counters(_ask(container, {}, {ATTRIBUTES_HEADER: COUNTERS_ATTRIBUTE}))


def _ask(
    container: Container, body: dict[str, Any], headers: dict[str, str] | None = None
) -> dict[str, Any]:
    status, answer = container.request("POST", "/invocations", json.dumps(body).encode(), headers)
    if status != 200:
        raise SystemExit(f"the engine answered {status}: {answer[:300]!r}")
    document: dict[str, Any] = json.loads(answer)
    return document


def _peagle(arguments: Sequence[str]) -> str:
    """What the command prints; a proof that fails prints its document too."""
    done = subprocess.run(["peagle", *arguments], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"peagle {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m measurements.gpu.conversations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--vllm", default="0.28.0", help="the installed version (default: 0.28.0)")
    add("--set", action="append", default=[], help="an argument of vLLM, as of `peagle plan`")
    add("--root", type=Path, default=Path(".gpu/conversations"), help="logs and caches")
    add("--cpu", action="store_true", help="rehearse with the CPU engine")
    add("--python", default=sys.executable, help="Python of the engine (default: this one)")
    add("--evidence", type=Path, default=EVIDENCE, help="results are appended to this file")
    options = parser.parse_args()
    root = options.root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    gpu, driver = ("none", "") if options.cpu else host.gpu_and_driver()
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    facts = {"vllm": options.vllm, "gpu": gpu, "driver": driver, "date": day}
    file = options.evidence
    earlier = json.loads(file.read_text())["rows"] if file.is_file() else []

    def save(rows: list[dict[str, Any]]) -> None:
        document = {"about": ABOUT, "rows": [*earlier, *({**facts, **row} for row in rows)]}
        file.write_text(json.dumps(document, indent=1) + "\n")

    for row in measure(options, root, save):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
