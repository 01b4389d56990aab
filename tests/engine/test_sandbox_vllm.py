"""The sandbox with real vLLM behind it."""

import json
import re
import time
import urllib.request

import pytest
from botocore.exceptions import ClientError

from peagle.engine_log import counters_in_log
from peagle.protocol import Counters, EventSplitter, parse_piece, request_body
from tests.engine.conftest import TINY
from tests.sandbox.sandboxes import Account, Sandbox, until

pytestmark = [pytest.mark.engine, pytest.mark.sandbox]
PROMPT = "What does textwrap.wrap do?"


@pytest.fixture(scope="module")
def account(sandbox: Sandbox, printed: str) -> Account:
    return Account(sandbox)


@pytest.fixture(scope="module")
def name(printed: str) -> str:
    return TINY


def events(parts: list[bytes]) -> list[str]:
    splitter = EventSplitter()
    return [event for part in parts for event in splitter.feed(part)]


def text_of(parts: list[bytes]) -> str:
    *pieces, done = events(parts)
    assert done == "[DONE]"
    return "".join(parse_piece(json.loads(piece)).text for piece in pieces)


def metric(sandbox: Sandbox, name: str) -> float:
    """The sum of one of vLLM's counters over its labels."""
    engines = sandbox.json("sandbox", "status")["endpoints"]
    port = next(engine["port"] for engine in engines if engine["name"] == TINY)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(name, line))


def test_every_api_of_the_endpoint_gives_the_same_answer(account: Account, name: str) -> None:
    asked = request_body(PROMPT, chat=True, max_tokens=40)
    whole = parse_piece(account.invoke(name, asked)).text
    assert whole.strip()
    streamed = request_body(PROMPT, chat=True, max_tokens=40, stream=True)
    answer = account.runtime.invoke_endpoint_with_response_stream(
        EndpointName=name, Body=json.dumps(streamed), ContentType="application/json"
    )
    parts = [event["PayloadPart"]["Bytes"] for event in answer["Body"]]
    assert len(parts) > 3, "the answer comes in pieces"
    assert text_of(parts) == whole


def sum_of_log(account: Account, name: str) -> Counters:
    """What the engine's lines of statistics add up to."""
    counters = filter(None, map(counters_in_log, account.log(name)))
    return sum(counters, Counters(0, 0, 0))


def test_the_log_of_aws_s_image_counts_accepted_drafts(account: Account, name: str) -> None:
    with pytest.raises(ClientError):
        account.invoke(name, {}, CustomAttributes="peagle=counters")
    before = sum_of_log(account, name)
    account.invoke(name, request_body(PROMPT, chat=True, max_tokens=40))
    after = until(lambda: sum_of_log(account, name), lambda now: now.drafts > before.drafts)
    assert after.accepted_tokens > before.accepted_tokens


def test_a_disconnect_ends_the_generation(account: Account, sandbox: Sandbox, name: str) -> None:
    generated, running = r"vllm:generation_tokens_total\{", r"vllm:num_requests_running\{"
    before = metric(sandbox, generated)
    body = request_body(PROMPT, chat=True, max_tokens=2000, stream=True) | {"ignore_eos": True}
    answer = account.runtime.invoke_endpoint_with_response_stream(
        EndpointName=name, Body=json.dumps(body), ContentType="application/json"
    )
    next(iter(answer["Body"]))
    answer["Body"].close()
    until(lambda: metric(sandbox, running), lambda left: left == 0, seconds=20)
    assert 0 < metric(sandbox, generated) - before < 1000, "vLLM stopped before all 2000 tokens"


def test_vllms_lines_are_in_the_log(account: Account, name: str) -> None:
    lines = account.log(name)
    assert not any(line.startswith("serve: ") for line in lines), "AWS's image has no such line"
    assert any("non-default args" in line and "parallel_drafting" in line for line in lines)
    assert any("Application startup complete" in line for line in lines)


def test_a_target_that_is_too_large_has_a_stand_in_with_the_same_settings(
    sandbox: Sandbox, account: Account
) -> None:
    """gpt-oss-20b with its plan for a GPU; deleting the endpoint leaves nothing."""
    plan = sandbox.json("plan", "gpt-oss-20b", "--name", "large")
    model = next(request for request in plan["requests"] if request["operation"] == "create_model")
    environment = model["parameters"]["PrimaryContainer"]["Environment"]
    account.model("large", environment, ModelDataSource=None)
    account.config("large", "large", InstanceType=plan["instance_type"])
    account.sagemaker.create_endpoint(EndpointName="large", EndpointConfigName="large")
    line = until(
        lambda: account.describe("large"),
        lambda line: line["EndpointStatus"] != "Creating",
        seconds=180,
    )
    assert line["EndpointStatus"] == "InService", line.get("FailureReason")
    answer = account.invoke("large", request_body(PROMPT, chat=True, max_tokens=20))
    assert answer["model"] == "openai/gpt-oss-20b"
    account.wait_for_line("large", "SpecDecoding metrics: ")
    assert sum_of_log(account, "large").accepted_tokens > 0
    engines = sandbox.json("sandbox", "status")["endpoints"]
    (engine,) = [request for request in engines if request["name"] == "large"]
    assert engine["stand_in"] == "peagle/tiny"
    begin = time.monotonic()
    account.delete("large")
    assert time.monotonic() - begin < 30
    assert engine["pid"] not in sandbox.processes()
