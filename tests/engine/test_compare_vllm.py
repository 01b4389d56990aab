"""Speculation on and off on one endpoint, with real vLLM: the comparison agrees with bench."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.data import data_folder
from tests.sandbox.sandboxes import Account, Sandbox
from tests.unit.bench.installed import install_mini

pytestmark = [pytest.mark.engine, pytest.mark.sandbox, pytest.mark.exhaustive]
NAME = "compared"
TYPE = "ml.g6.xlarge"
WHERE = ("--sandbox",)
QUESTIONS = [
    one["prompt"]
    for one in json.loads((data_folder("model_catalog") / "peagle/tiny/prompts.json").read_text())
    if one["kind"] == "chat"
]
TRAFFIC_SECONDS = 8.0
"""Enough for several lines of statistics of each variant: one alone has no spread."""


@pytest.fixture(scope="module")
def workload(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prompts as a workload of bench, which sends with a small load generator."""
    install_mini(sandbox.home)
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in QUESTIONS))
    return file


@pytest.fixture(scope="module")
def endpoint(sandbox: Sandbox) -> Iterator[str]:
    """An endpoint that speculates; its quota is enough for two variants beside it."""
    quota = ("sandbox", "quota", "set", TYPE, "3", "--region", "us-east-1")
    assert sandbox.peagle(*quota).returncode == 0
    document = sandbox.json(
        "deploy", "tiny", "--name", NAME, "--instance-type", TYPE, *WHERE, "--yes"
    )
    assert document["k"] == 7
    yield NAME
    sandbox.peagle("destroy", NAME, *WHERE, "--yes")


def seconds_per_token(sandbox: Sandbox, workload: Path) -> float:
    """What bench measures, one request at a time."""
    document = sandbox.json(
        "bench", "run", NAME, *WHERE, "--workload", str(workload), "--concurrency", "1",
        "--requests", "4", "--repetitions", "1", "--output-tokens", "64",
    )  # fmt: skip
    (row,) = document["rows"]
    mean: float = row["tpot"]["mean"]
    return mean


def send_traffic(account: Account, seconds: float) -> None:
    """Requests of a client that knows nothing of variants, one after the other."""
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        message = {"role": "user", "content": QUESTIONS[number // 2 % len(QUESTIONS)]}
        body = {"messages": [message], "max_tokens": 96, "temperature": 0, "stream": True}
        answer = account.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
            EndpointName=NAME, ContentType="application/json", Body=json.dumps(body)
        )
        for _ in answer["Body"]:
            pass
        number += 1


def test_a_comparison_of_on_and_off_has_the_sign_of_bench(
    sandbox: Sandbox, endpoint: str, workload: Path
) -> None:
    on = seconds_per_token(sandbox, workload)
    started = sandbox.json(
        "compare", NAME, "--with", "tiny --no-speculation", "--share", "50%", *WHERE, "--yes"
    )
    assert started["comparison"]["state"] == "running"
    send_traffic(Account(sandbox), TRAFFIC_SECONDS)
    time.sleep(2)  # the last lines of statistics
    report: dict[str, Any] = sandbox.json("compare", NAME, *WHERE)
    changed = sandbox.json("compare", NAME, "--share", "99.9%", *WHERE, "--yes")
    assert changed["comparison"]["share"] == 0.999
    off = seconds_per_token(sandbox, workload)
    # Each twice, in turn: the machine may be busy during one of them.
    sandbox.json("compare", NAME, "--share", "0.1%", *WHERE, "--yes")
    on = min(on, seconds_per_token(sandbox, workload))
    sandbox.json("compare", NAME, "--share", "99.9%", *WHERE, "--yes")
    off = min(off, seconds_per_token(sandbox, workload))
    speculating, alone = report["variants"]
    assert (speculating["k"], alone["k"]) == (7, 0)
    assert abs(speculating["requests"] - alone["requests"]) <= 2
    assert speculating["acceptance_length"]["value"] > 1.5
    assert alone["acceptance_length"] is None
    change = report["changes"]["seconds_per_token"]["value"]
    assert (change > 0) == (off > on), (report, on, off)
