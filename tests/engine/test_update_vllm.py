"""Deployments that fail, change and end, with real vLLM and the tiny pair. In its group it
runs after all other modules, since the shared endpoint goes with it."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from peagle.data import data_folder
from peagle.engine_log import counters_in_log
from peagle.proof import MIN_DRAFTS
from peagle.protocol import request_body
from peagle.sandbox.client import set_minute
from tests.engine.conftest import TINY
from tests.sandbox.sandboxes import OUR_IMAGE, Account, Sandbox, until
from tests.support import Peagle

pytestmark = [pytest.mark.engine, pytest.mark.sandbox]

QUESTION = "What does os.path.join do?"
WHERE = ("--sandbox",)


@pytest.fixture(scope="module")
def broken_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny head with an activation that vLLM does not support for it and no rule checks."""
    folder = tmp_path_factory.mktemp("head") / "p-eagle"
    shutil.copytree(data_folder("model_catalog") / "peagle" / "tiny" / "p-eagle", folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_act": "gelu"}))
    return folder


def test_a_broken_head_fails_with_its_reason_and_is_removed_completely(
    peagle: Peagle, sandbox: Sandbox, broken_head: Path
) -> None:
    done = peagle(
        "deploy", "tiny", "--drafter", str(broken_head), "--name", "broken", *WHERE, "--yes"
    )

    assert done.returncode == 4
    error = done.stderr.splitlines()[-1]
    assert "endpoint broken will never serve" in error
    assert "Unsupported activation: gelu" in error
    assert sandbox.peagle("status", "broken", *WHERE).returncode == 2
    assert "broken" not in [row["name"] for row in sandbox.json("list", *WHERE)["deployments"]]


def test_a_failed_update_is_reported_at_once_and_rolled_back(
    printed: str, peagle: Peagle, sandbox: Sandbox, broken_head: Path
) -> None:
    before = sandbox.json("status", TINY, *WHERE)

    done = peagle("deploy", "tiny", "--drafter", str(broken_head), "--name", TINY, *WHERE, "--yes")

    assert done.returncode == 4
    assert "Unsupported activation: gelu" in done.stderr
    assert "the earlier configuration keeps serving" in done.stderr
    Account(sandbox).wait_until_stable(TINY)
    after = sandbox.json("status", TINY, *WHERE)
    assert after["state"] == "InService"
    assert after["endpoint_config"] == before["endpoint_config"]
    assert sandbox.json("invoke", TINY, QUESTION, "--max-tokens", "8", *WHERE)["output_tokens"] == 8


def test_another_k_and_image_are_an_update_with_a_new_proof(printed: str, sandbox: Sandbox) -> None:
    Account(sandbox).push(OUR_IMAGE)
    changes = ("--k", "3", "--image", OUR_IMAGE)
    document = sandbox.json("deploy", "tiny", *changes, "--yes", *WHERE)

    assert document["state"] == "InService"
    assert document["k"] == len(document["acceptance_per_position"]) == 3
    assert document["acceptance_length"] > 1.5
    assert document["proof"]["source"] == "counters"
    answer = sandbox.json("invoke", TINY, QUESTION, "--max-tokens", "48", *WHERE)
    assert answer["acceptance_length"] > 1.5, "of this answer"
    kinds = [resource["type"] for resource in document["resources"]]
    kept = "the new revision and the previous one"
    assert kinds.count("Model") == kinds.count("EndpointConfig") == 2, kept


PERIOD_SECONDS = 5.0
"""How long an evaluation period of an alarm lasts here."""

LATE_PERIODS = 1
"""During which the alarm is evaluated, and the rollback begins and is seen."""

SENDERS = 16
"""An alarm ignores a period of fewer than 100 drafts. A step of the engine drafts once for each
sender. A busy machine may still have such periods, so the test counts the others."""


class LowAcceptance(threading.Thread):
    """Once the update bakes, requests whose drafts are mostly rejected; ``periods`` is the most
    evaluation periods in a row with enough drafts, until the rollback."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self.periods = 0
        self._account = account
        self._is_over = threading.Event()

    def run(self) -> None:
        until(self._stage, lambda stage: stage == "Baking", seconds=180)
        begun = time.time()
        senders = [threading.Thread(target=self._send) for _ in range(SENDERS)]
        for sender in senders:
            sender.start()
        try:
            until(self._stage, lambda stage: stage == "RollingBack", seconds=120)
            self.periods = self._counted_periods(begun, time.time())
        finally:
            self._is_over.set()
            for sender in senders:
                sender.join()

    def _stage(self) -> str:
        found = self._account.describe(TINY)
        variants = found.get("PendingDeploymentSummary", {}).get("ProductionVariants", [])
        stages = [one["Status"] for v in variants for one in v.get("VariantStatus", [])]
        is_updating = found["EndpointStatus"] == "Updating"
        return str(stages[0] if stages and is_updating else found["EndpointStatus"])

    def _counted_periods(self, since: float, until: float) -> int:
        """The longest run of periods whose drafts in the log an alarm counts; the times are in
        epoch seconds, on whose multiples a period begins."""
        first, last = (int(at // PERIOD_SECONDS) for at in (since, until))
        pages = self._account.logs.get_paginator("filter_log_events").paginate(
            logGroupName=f"/aws/sagemaker/Endpoints/{TINY}",
            startTime=int(first * PERIOD_SECONDS * 1000),
        )
        drafts: Counter[int] = Counter()
        for event in (event for page in pages for event in page["events"]):
            if counters := counters_in_log(event["message"]):
                drafts[int(event["timestamp"] / 1000 // PERIOD_SECONDS)] += counters.drafts
        counted = (drafts[period] >= MIN_DRAFTS for period in range(first, last + 1))
        runs = (len([*run]) for is_counted, run in groupby(counted) if is_counted)
        return max(runs, default=0)

    def _send(self) -> None:
        body = request_body(QUESTION, chat=True, max_tokens=64, temperature=2.0)
        while not self._is_over.is_set():
            self._account.invoke(TINY, body | {"ignore_eos": True})


@pytest.mark.exhaustive
def test_a_low_acceptance_undoes_an_update_within_two_evaluation_periods(
    printed: str, sandbox: Sandbox
) -> None:
    account = Account(sandbox)
    Account(sandbox).push(OUR_IMAGE)
    before = sandbox.json("status", TINY, *WHERE)
    rollout = ("--rollout", "all-at-once", "--baking-time", "1h")
    with sandbox.at_home():
        set_minute(PERIOD_SECONDS)
    traffic = LowAcceptance(account)
    traffic.start()

    done = sandbox.peagle(
        "deploy", "tiny", "--k", "4", "--image", OUR_IMAGE, *rollout, "--yes", *WHERE
    )

    traffic.join()
    assert done.returncode == 4, done.stderr
    assert f"rolled back on the alarm {TINY}-acceptance" in done.stderr
    assert "peagle deploy peagle/tiny --no-speculation" in done.stderr
    assert traffic.periods <= 2 + LATE_PERIODS
    after = sandbox.json("status", TINY, *WHERE)
    assert (after["endpoint_config"], after["k"]) == (before["endpoint_config"], before["k"])


def test_destroy_leaves_no_process_and_no_record(
    printed: str, sandbox: Sandbox, peagle: Peagle
) -> None:
    sandbox.json("destroy", TINY, "--yes", *WHERE)

    assert json.loads(peagle("sandbox", "status", "--json").stdout)["endpoints"] == []
    assert sandbox.json("list", *WHERE)["deployments"] == []
