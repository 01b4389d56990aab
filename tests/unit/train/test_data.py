"""Training data: rows of every form, captured records, what is held out, what trainers get."""

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from peagle.aws.client import Aws
from peagle.bench.workloads import random_prompt, read_prompts
from peagle.checkpoints.entries import PROOF_PROMPTS
from peagle.train.data import (
    MOST_PROMPTS,
    Conversation,
    TrainingData,
    find_captured,
    read_training_data,
    write_conversations,
    write_prompts,
)
from tests.support import raises_code
from tests.unit.aws.conftest import moto_connection

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello."}
SHARED = {"from": "gpt", "value": "Hello."}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "look"}}


def no_aws() -> Aws:
    raise AssertionError("a file needs no account")


def questions(count: int, domain: str = "all") -> list[dict[str, Any]]:
    return [{"prompt": f"{domain} question {n}", "domain": domain} for n in range(count)]


def write(folder: Path, rows: list[Any], name: str = "data.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def read(folder: Path, rows: list[Any], **options: Any) -> TrainingData:
    return read_training_data([str(write(folder, rows))], no_aws, **options)


def everything(data: TrainingData) -> dict[str, Conversation]:
    return {each.prompt[-1]["content"]: each for each in (*data.train, *data.held_out)}


def codes(data: TrainingData) -> set[str]:
    return {finding.code for finding in data.findings} - {"data-no-answers"}


def event(text: str, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": text, **more}}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


STREAMED = event("", reasoning="Hm") + event("Hel") + event("lo.") + "data: [DONE]\n\n"
COMPLETED = json.dumps({"choices": [{"text": "Hello."}]})
CHATTED = json.dumps({"choices": [{"message": {**ANSWER, "reasoning": None, "refusal": None}}]})
CALLED = json.dumps({"choices": [{"message": {**ANSWER, "content": None, "tool_calls": [CALL]}}]})


def captured(request: Any, answer: str | None = None, encoding: str = "JSON") -> dict[str, Any]:
    """A record of SageMaker's data capture."""

    def part(mode: str, data: str, kind: str) -> dict[str, str]:
        if encoding == "BASE64":
            data = base64.b64encode(data.encode()).decode()
        return {"observedContentType": kind, "mode": mode, "data": data, "encoding": encoding}

    request = request if isinstance(request, str) else json.dumps(request)
    record = {"endpointInput": part("INPUT", request, "application/json")}
    if answer is not None:
        kind = "text/event-stream" if answer.startswith("data:") else "application/json"
        record["endpointOutput"] = part("OUTPUT", answer, kind)
    metadata = {"eventId": "e1", "inferenceTime": "2026-11-20T11:00:00Z"}
    return {"captureData": record, "eventMetadata": metadata, "eventVersion": "0"}


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "Hi"}, [USER]),
        ({"prompt": "Hi", "completion": "Hello."}, [USER, ANSWER]),
        ({"messages": [USER, ANSWER], "id": 7}, [USER, ANSWER]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
            [USER],
        ),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, SHARED]},
            [USER, ANSWER],
        ),
        (
            {"conversations": [{"role": "user", "content": "Hi"}, {**SHARED, "from": "Qwen"}]},
            [USER, ANSWER],
        ),
        (
            {"messages": [{"role": "developer", "content": "Be short."}, USER]},
            [{"role": "system", "content": "Be short."}, USER],
        ),
        (captured({"messages": [USER]}), [USER]),
        (captured({"messages": [USER]}, CHATTED), [USER, ANSWER]),
        (captured({"messages": [USER]}, CHATTED, "BASE64"), [USER, ANSWER]),
        (captured({"prompt": "Hi", "max_tokens": 3}, COMPLETED), [USER, ANSWER]),
        (
            captured({"messages": [USER], "stream": True}, STREAMED, "BASE64"),
            [USER, {**ANSWER, "reasoning_content": "Hm"}],
        ),
        (
            captured({"messages": [USER]}, CALLED),
            [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}],
        ),
        (captured({"messages": [USER]}, STREAMED.removesuffix("data: [DONE]\n\n")), [USER]),
        (captured({"messages": [USER]}, '{"error": {"message": "no"}}'), [USER]),
    ],
)  # fmt: skip
def test_a_row_of_each_form_is_a_conversation(
    tmp_path: Path, row: dict[str, Any], messages: list[Any]
) -> None:
    conversation = everything(read(tmp_path, [row, *questions(5)]))["Hi"]
    assert conversation.messages == tuple(messages)
    assert conversation.answered == (messages[-1]["role"] == "assistant")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": " "}, "without-text"),
        ({"messages": [{"role": "system", "content": "Hi"}]}, "without-text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "not-text",
        ),
        (captured("<xml>"), "not-a-chat"),
        (captured('{"prompt": "\\ud800"}'), "not-a-chat"),
        (captured("{}"), "not-a-chat"),
        (captured({"prompt": ["a", "b"]}, COMPLETED), "not-a-chat"),
        (captured({"messages": "Hi"}, CHATTED), "not-a-chat"),
        (captured({"messages": ["Hi"]}, CHATTED), "not-a-chat"),
        ({"captureData": {"endpointInput": {"data": "?", "encoding": "BASE64"}}}, "not-a-chat"),
        ({"captureData": "?"}, "not-a-chat"),
    ],
)
def test_rows_without_a_conversation_are_counted(
    tmp_path: Path, row: dict[str, Any], reason: str
) -> None:
    data = read(tmp_path, [row, *questions(5)])
    assert data.left_out == {reason: 1}
    assert len(everything(data)) == 5
    assert codes(data) == {"data-left-out", "data-one-domain"}


@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        ("", "no-data", ""),
        (" \n\n", "no-data", ""),
        ('{"prompt": "a"}\n{"prompt"', "data-not-json-lines", "line 2"),
        ('[{"prompt": "a"}]', "data-not-json-lines", "line 1"),
        ('{"text": "a"}', "data-not-json-lines", "line 1"),
        ('{"messages": ["a"]}', "data-not-json-lines", "line 1"),
        ('{"prompt": 3}', "data-not-json-lines", "line 1"),
        ('{"prompt": "a", "domain": ""}', "data-not-json-lines", "line 1"),
        ('{"prompt": ""}\n{"messages": []}', "data-without-text", ""),
        ('{"input_ids": [151000], "loss_mask": [1]}', "data-token-ids", "line 1"),
        ('{"prompt": "the same"}\n{"prompt": " The  same"}', "data-one-question", ""),
    ],
)
def test_data_that_cannot_be_used(tmp_path: Path, content: str, code: str, place: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(content)
    with raises_code(code) as raised:
        read_training_data([str(file)], no_aws)
    assert place in raised.value.message
    assert ("jq -c" in raised.value.fix) is content.startswith("["), "how to convert an array"


def test_sources_that_cannot_be_read(tmp_path: Path) -> None:
    for source, code in (
        (f"{tmp_path}/missing.jsonl", "data-unreadable"), ("s3://", "data-unreadable"),
        (str(tmp_path), "no-data"),
    ):  # fmt: skip
        with raises_code(code):
            read_training_data([source], no_aws)


def test_the_files_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "20" / "11").mkdir(parents=True)
    write(tmp_path, questions(4), "20/11/25-01.jsonl")
    write(tmp_path, [{"prompt": "b"}], "b.jsonl")
    write(tmp_path, ["no row"], "notes.txt")
    assert len(everything(read_training_data([str(tmp_path)], no_aws))) == 5


def asked(*texts: str) -> dict[str, Any]:
    turns = [({"role": "user", "content": text}, ANSWER) for text in texts]
    return captured({"messages": [message for turn in turns for message in turn]})


def test_what_the_toolkit_sends_is_left_out(tmp_path: Path) -> None:
    first, second = PROOF_PROMPTS[:2]
    ours = [
        asked(first), asked(first, second), asked("of the target"), asked("of the target", first),
        captured({"prompt": f"{first} Because it is.\n\n{second}"}),
        captured({"prompt": random_prompt(20, random.Random(1))}),
    ]  # fmt: skip
    theirs = [asked(first, "mine"), asked("another"), asked("7 people"), asked("42")]
    options: dict[str, Any] = {"proof_prompts": ["of the target"]}
    data = read(tmp_path, [*ours, *theirs], **options)
    assert data.left_out == {"sent-by-peagle": len(ours)}
    assert len(everything(data)) == len(theirs)
    [finding] = [each for each in data.findings if each.code == "data-left-out"]
    assert finding.level == "note"
    with raises_code("no-data"):
        read(tmp_path, ours, **options)


def test_prompts_beyond_the_context_are_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": "word " * 100}, *questions(5)]
    assert read(tmp_path, rows, context=100).left_out == {"too-long": 1}
    with raises_code("data-too-long"):
        read(tmp_path, rows, context=2)


def test_conversations_beyond_the_context_are_counted(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "completion": "word " * n} for n in (40, 60, 90, 100)]
    held_out = write(tmp_path, questions(5)).rename(tmp_path / "held-out.jsonl")
    [cut] = [
        finding
        for finding in read(tmp_path, rows, context=100, held_out=held_out).findings
        if finding.code == "data-cut"
    ]
    assert (cut.level, "2 of 4" in cut.message) == ("warning", True)


def test_only_the_longest_form_of_a_conversation_remains(tmp_path: Path) -> None:
    more, result = {"role": "user", "content": "More"}, {"role": "tool", "content": "3"}
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    rows = [
        {"messages": [USER]},
        {"messages": [USER, ANSWER, more]},
        {"messages": [USER, {**ANSWER, "content": "Hello!"}, more, ANSWER]},
        captured({"messages": [USER], "tools": [TOOL]}, CALLED),
        captured({"messages": [USER, called, result], "tools": [TOOL]}, CHATTED),
        *questions(5),
    ]
    data = read(tmp_path, rows)
    long = [each.messages for each in (*data.train, *data.held_out) if each.messages[0] == USER]
    assert data.left_out == {"repeated-turns": 3}
    assert [len(messages) for messages in long] == [4, 4]
    assert {each.question == data.train[0].question for each in data.held_out} == {False}


def test_the_held_out_questions_are_the_same_in_every_run(tmp_path: Path) -> None:
    rows = questions(300, "code") + questions(3, "chat") + questions(1, "rare")
    data, turned = read(tmp_path, rows), read(tmp_path, rows[::-1])
    assert {each.id for each in data.held_out} == {each.id for each in turned.held_out}
    more = read(tmp_path, rows + questions(400, "code")[300:])
    assert {each.id for each in data.held_out} <= {each.id for each in more.held_out}
    assert 15 < len(data.held_out) < 45
    assert {each.domain for each in data.held_out} >= {"code", "chat"}
    assert {each.domain for each in data.train} == {"code", "chat", "rare"}
    assert not {each.question for each in data.train} & {each.question for each in data.held_out}
    assert codes(data) == set()
    half = read(tmp_path, rows, held_out=0.5)
    assert 120 < len(half.held_out) < 180


def test_a_question_of_two_domains_is_on_one_side(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "system", "content": domain}, USER], "domain": domain}
            for domain in "abcdef"]  # fmt: skip
    data = read(tmp_path, [*rows, *questions(30)])
    sides = [USER in each.messages for each in data.held_out]
    assert sum(sides) in (0, 6)


def test_the_questions_of_a_held_out_file_are_not_trained_on(tmp_path: Path) -> None:
    held = write(tmp_path, [*questions(10)[:3], {"prompt": "another"}], "held.jsonl")
    data = read(tmp_path, questions(10), held_out=held)
    assert (len(data.train), len(data.held_out)) == (7, 4)
    assert codes(data) == {"data-leak", "data-one-domain"}
    with raises_code("data-one-question"):
        read(tmp_path, questions(3), held_out=held)


def test_the_rows_that_the_target_answers_again(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be short."}
    result = {"role": "tool", "content": "3", "tool_call_id": "c1"}
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    row = {"messages": [system, USER, called, result, ANSWER], "tools": [TOOL], "id": "x"}
    data = read(tmp_path, [row, *questions(5)])
    conversation = everything(data)["Hi"]
    file = tmp_path / "out.jsonl"
    assert write_conversations([conversation], file) == 1
    written = json.loads(file.read_text())
    assert written["id"] == conversation.id
    assert [each["role"] for each in written["conversations"]] == ["system", "user", "tool"]
    assert json.loads(written["tools"]) == [TOOL]
    assert write_conversations([conversation], file, keep_answers=True) == 1
    assert json.loads(file.read_text())["conversations"] == list(conversation.messages)


def test_only_conversations_with_an_answer_keep_one(tmp_path: Path) -> None:
    rows = [{"messages": [USER, ANSWER, {"role": "user", "content": "More"}]}, *questions(5)]
    data, file = read(tmp_path, rows), tmp_path / "out.jsonl"
    assert write_conversations(everything(data).values(), file, keep_answers=True) == 1
    assert json.loads(file.read_text())["conversations"] == [USER, ANSWER]
    assert write_conversations(everything(data).values(), file) == 6


def test_bench_reads_the_held_out_prompts(tmp_path: Path) -> None:
    rows = [{"messages": [USER, ANSWER], "domain": "chat"}, *questions(9, "code")]
    conversations, file = list(everything(read(tmp_path, rows)).values()), tmp_path / "held.jsonl"
    write_prompts(conversations, file)
    prompts = read_prompts(file)
    assert prompts.domains["chat"][0].messages == [USER]
    assert {name: len(members) for name, members in prompts.domains.items()} == {
        "chat": 1, "code": 9,
    }  # fmt: skip


def test_acceptance_is_measured_on_as_many_prompts_of_each_domain(tmp_path: Path) -> None:
    data = read(tmp_path, [*questions(150, "code"), *questions(150, "chat"), *questions(3, "rare")])
    file = tmp_path / "held.jsonl"
    write_prompts([*data.train, *data.held_out], file)
    domains = read_prompts(file).domains
    assert sum(map(len, domains.values())) <= MOST_PROMPTS
    assert len(domains["code"]) == len(domains["chat"]) > len(domains["rare"]) > 0


@pytest.fixture
def aws(own_home: Path) -> Iterator[Aws]:
    """moto's account: the bucket ``text``, the endpoint ``a``, which captures, and ``b``."""
    with mock_aws():
        aws = moto_connection()
        aws.call("s3", "create_bucket", Bucket="text")
        model = {
            "PrimaryContainer": {"Image": "i"},
            "ExecutionRoleArn": f"arn:aws:iam::{'1' * 12}:role/r",
        }
        aws.call("sagemaker", "create_model", ModelName="m", **model)
        variants = [{"VariantName": "v", "ModelName": "m", "InstanceType": "ml.m5.xlarge",
                     "InitialInstanceCount": 1}]  # fmt: skip
        for name in "ab":
            capture = {
                "EnableCapture": name == "a",
                "InitialSamplingPercentage": 100,
                "DestinationS3Uri": "s3://text/captured",
                "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
            }
            aws.call("sagemaker", "create_endpoint_config", EndpointConfigName=name,
                     ProductionVariants=variants, DataCaptureConfig=capture)  # fmt: skip
            aws.call("sagemaker", "create_endpoint", EndpointName=name, EndpointConfigName=name)
        yield aws


def put(aws: Aws, key: str, rows: list[Any]) -> None:
    data = "\n".join(json.dumps(row) for row in rows).encode()
    aws.call("s3", "put_object", Bucket="text", Key=key, Body=data)


def test_objects_are_read_by_key_and_by_prefix(aws: Aws) -> None:
    put(aws, "week/1.jsonl", questions(5))
    put(aws, "week/2/3.jsonl", questions(9))
    put(aws, "week/readme.txt", ["no row"])
    put(aws, "week2/1.jsonl", questions(20))
    put(aws, "rows", questions(6))
    for source, count, repeated in (
        ("s3://text/week", 9, 5), ("s3://text/week/", 9, 5), ("s3://text/week/1.jsonl", 5, 0),
        ("s3://text/rows", 6, 0),
    ):  # fmt: skip
        data = read_training_data([source], lambda: aws)
        assert len(everything(data)) == count, source
        assert data.left_out.get("repeated-turns", 0) == repeated


def test_bad_objects_are_named(aws: Aws) -> None:
    put(aws, "week/1.jsonl", ["no row"])
    with raises_code("data-not-json-lines") as raised:
        read_training_data(["s3://text/week"], lambda: aws)
    assert "s3://text/week/1.jsonl, line 1" in raised.value.message
    with raises_code("no-bucket"):
        read_training_data(["s3://nowhere/week"], lambda: aws)


def test_what_an_endpoint_captured_is_read(aws: Aws) -> None:
    records = [captured({"prompt": f"question {n}"}, COMPLETED) for n in range(5)]
    put(aws, "captured/a/v/2026/11/20/11/25-01-123-x.jsonl", records[:3])
    put(aws, "captured/a/w/2026/11/20/12/25-01-123-x.jsonl", records[3:])
    put(aws, "captured/ab/v/2026/11/20/12/25-01-123-x.jsonl", records)
    data = read_training_data(["capture:a"], lambda: aws)
    assert len(everything(data)) == 5
    assert not data.left_out
    assert all(each.answered for each in data.train)


def test_an_endpoint_that_captures_nothing(aws: Aws) -> None:
    with raises_code("no-data"):
        read_training_data(["capture:a"], lambda: aws)
    with raises_code("no-capture"):
        find_captured(aws, "b")
    with raises_code("not-found"):
        find_captured(aws, "c")
