"""The engine's log in CloudWatch Logs."""

from __future__ import annotations

import pytest

from peagle.engine_log import log_text
from tests.sandbox.sandboxes import Account, until

pytestmark = pytest.mark.sandbox

GROUP = "/aws/sagemaker/Endpoints/"


def test_the_log_has_one_event_per_line(account: Account, live: str) -> None:
    lines = account.wait_for_line(live, "fake: INFO starting")
    assert lines[0].startswith("sandbox: ")
    assert not any(line.startswith("serve: ") for line in lines), "AWS's image writes no such line"
    assert all("\n" not in line for line in lines)
    (stream,) = account.logs.describe_log_streams(logGroupName=GROUP + live)["logStreams"]
    variant, _, instance = stream["logStreamName"].partition("/")
    assert (variant, instance[:2], len(instance)) == ("AllTraffic", "i-", 19)


def test_tokens_page_from_old_lines_to_new_ones(account: Account, live: str) -> None:
    account.wait_for_line(live, "fake: INFO starting")
    group = GROUP + live
    (stream,) = account.logs.describe_log_streams(logGroupName=group)["logStreams"]
    where = {"logGroupName": group, "logStreamName": stream["logStreamName"]}
    seen = account.logs.get_log_events(**where, startFromHead=True)
    token = seen["nextForwardToken"]
    nothing_new = account.logs.get_log_events(**where, nextToken=token)
    assert (nothing_new["events"], nothing_new["nextForwardToken"]) == ([], token)
    account.runtime.invoke_endpoint(EndpointName=live, Body=b'{"do": "log", "text": "line 2"}')
    grown = until(
        lambda: account.logs.get_log_events(**where, nextToken=token),
        lambda answer: answer["events"],
    )
    assert [log_text(event["message"]) for event in grown["events"]] == ["fake: line 2"]
    assert grown["nextForwardToken"] != token


def test_each_engine_has_its_own_stream(account: Account, live: str) -> None:
    account.model("streams", {"SM_VLLM_SEED": "1"})
    account.config("streams", "streams")
    account.sagemaker.update_endpoint(EndpointName=live, EndpointConfigName="streams")
    account.wait_until_stable(live)
    found = account.logs.describe_log_streams(logGroupName=GROUP + live)["logStreams"]
    assert len({stream["logStreamName"] for stream in found}) == 2
