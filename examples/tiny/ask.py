"""Send questions to an endpoint, as its users do: each line of a file as a request.

    python -m examples.tiny.ask NAME questions.jsonl

The client is boto3's; `eval "$(peagle sandbox env)"` lets it reach the sandbox.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3


def main() -> None:
    """Ask the endpoint that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("endpoint")
    parser.add_argument("questions", type=Path)
    parser.add_argument("--first", type=int, default=0, help="questions to leave out")
    parser.add_argument("--count", type=int, help="default: all others")
    options = parser.parse_args()
    runtime = boto3.client("sagemaker-runtime")

    def ask(line: str) -> Any:
        body = {"messages": json.loads(line)["messages"], "max_tokens": 160, "temperature": 0}
        answer = runtime.invoke_endpoint(
            EndpointName=options.endpoint, Body=json.dumps(body), ContentType="application/json"
        )
        return json.load(answer["Body"])["usage"]["completion_tokens"]

    lines = options.questions.read_text(encoding="utf-8").splitlines()[options.first :]
    with ThreadPoolExecutor(16) as threads:
        tokens = list(threads.map(ask, lines[: options.count]))
    print(f"{len(tokens)} answers, {sum(tokens)} tokens")


if __name__ == "__main__":
    main()
