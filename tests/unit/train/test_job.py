"""A training as a job of SageMaker: its request, its data in S3, its head, and why it fails."""

import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from peagle.aws import training
from peagle.aws.client import Aws
from peagle.aws.errors import InsufficientCapacity
from peagle.aws.iam import Role
from peagle.aws.training import TrainingJob, require_trained
from peagle.catalog import load_catalog
from peagle.catalog.find import find_instance
from peagle.errors import CloudError
from peagle.planning.company import Company
from peagle.request_validation import validate
from peagle.text import plain
from peagle.train.data import TrainingData, read_training_data
from peagle.train.job import (
    JobRun,
    JobSettings,
    fetch_head,
    job_arguments,
    job_findings,
    make_run,
    start_job,
    training_job_request,
)
from tests.support import raises_code
from tests.unit.aws.conftest import moto_connection
from tests.unit.train.test_data import questions, read

ROLE = Role("arn:aws:iam::123456789012:role/peagle-execution")
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-trainer:1"
NOW = 1_795_000_000.0
COMPANY = Company(
    subnets=("subnet-1",), security_groups=("sg-1",), network_isolation=True,
    kms_key="alias/training", tags={"team": "search"}, name_prefix="acme-",
)  # fmt: skip


def options(kind: str = "ml.g6e.2xlarge", **more: Any) -> JobSettings:
    instance = find_instance(load_catalog().instances, kind)
    return JobSettings(instance, IMAGE, ROLE, 7200, 70_000_000_000, **more)


@pytest.fixture
def data(tmp_path: Path) -> TrainingData:
    rows = [*questions(30, "code"), *questions(30, "chat")]
    tool = {"type": "function", "function": {"name": "look"}}
    message = {"role": "user", "content": "Look \u2013 \u201cquoted\u201d \u2028 \n"}
    return read(tmp_path, [*rows, {"messages": [message], "tools": [tool], "domain": "tool"}])


@pytest.fixture
def aws(own_home: Path) -> Iterator[Aws]:
    with mock_aws():
        yield moto_connection()


def request(run: JobRun, **more: Any) -> dict[str, Any]:
    arguments = job_arguments("qwen3-8b", "chat head", ["--epochs", "3"])
    return training_job_request(run.job_name(NOW), run, "qwen3-8b", arguments, options(**more))


def test_the_request_is_the_command_in_a_container_with_data_and_checkpoints_in_s3() -> None:
    assert request(JobRun("peagle-train-qwen3-8b-1a2b3c4d", "models")) == {
        "TrainingJobName": "peagle-train-qwen3-8b-1a2b3c4d-261118-110640",
        "RoleArn": ROLE.arn,
        "AlgorithmSpecification": {
            "TrainingImage": IMAGE,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["peagle"],
            "ContainerArguments": [
                "train", "run", "qwen3-8b", "--epochs", "3",
                "--data", "/opt/ml/input/data/data/train.jsonl",
                "--held-out", "/opt/ml/input/data/data/held_out.jsonl",
                "--work", "/opt/ml/checkpoints", "-o", "/opt/ml/model/chat-head",
            ],
        },
        "InputDataConfig": [
            {
                "ChannelName": "data",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": "s3://models/peagle-train/peagle-train-qwen3-8b-1a2b3c4d/data/",
                    }
                },
            }
        ],
        "OutputDataConfig": {
            "S3OutputPath": "s3://models/peagle-train/peagle-train-qwen3-8b-1a2b3c4d/jobs"
        },
        "CheckpointConfig": {
            "S3Uri": "s3://models/peagle-train/peagle-train-qwen3-8b-1a2b3c4d/checkpoints",
            "LocalPath": "/opt/ml/checkpoints",
        },
        "ResourceConfig": {
            "InstanceType": "ml.g6e.2xlarge", "InstanceCount": 1, "VolumeSizeInGB": 90,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 7200},
        "EnableManagedSpotTraining": False,
        "Tags": [
            {"Key": "peagle:toolkit", "Value": "training"},
            {"Key": "peagle:pair", "Value": "qwen3-8b"},
        ],
    }  # fmt: skip


def test_spot_network_keys_and_tags_are_those_of_the_company() -> None:
    asked = request(JobRun("r", "models"), is_spot=True, company=COMPANY)
    assert asked["EnableManagedSpotTraining"] is True
    assert asked["StoppingCondition"] == {
        "MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 14400,
    }  # fmt: skip
    assert asked["VpcConfig"] == {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
    assert asked["EnableNetworkIsolation"] is True
    assert asked["OutputDataConfig"]["KmsKeyId"] == "alias/training"
    assert {"Key": "team", "Value": "search"} in asked["Tags"]


@pytest.mark.parametrize(("kind", "key"), [("ml.g6e.2xlarge", None), ("ml.p3.2xlarge", "alias/x")])
def test_a_key_encrypts_a_volume_only_where_there_is_one(kind: str, key: str | None) -> None:
    chosen = options(company=Company(kms_key="alias/x"))
    instance = chosen.instance.model_copy(update={"type": kind, "nvme_gb": 0 if key else 450})
    asked = training_job_request("j", JobRun("r", "b"), "p", [], replace(chosen, instance=instance))
    assert asked["ResourceConfig"].get("VolumeKmsKeyId") == key


@pytest.mark.parametrize(
    "target",
    ["openai/gpt-oss-20b", "s3://bucket/My_Model/", "./my model", "Ünïcode-模型", "-", "x" * 200,
     "a--b..c", "$(rm -rf ~); `id`"],
)  # fmt: skip
@pytest.mark.parametrize("company", [Company(), COMPANY])
def test_aws_accepts_the_request_for_any_target(
    target: str, company: Company, data: TrainingData
) -> None:
    arguments = job_arguments(target, "head", [])
    run = make_run(target, arguments, data, "models")
    name = run.job_name(NOW)
    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", name)
    assert name.startswith("peagle-")
    asked = training_job_request(name, run, target, arguments, options(company=company))
    assert validate("sagemaker", "create_training_job", asked, ()) == ()
    trained = asked["AlgorithmSpecification"]["ContainerArguments"][2]
    channels = {each["ChannelName"]: each["DataSource"] for each in asked["InputDataConfig"]}
    if not target.startswith("s3://"):
        assert (trained, {*channels}) == (target, {"data"})
    else:
        assert trained == "/opt/ml/input/data/My_Model"  # so that the head's record has its name
        assert channels["My_Model"]["S3DataSource"]["S3Uri"] == target


@pytest.mark.parametrize("pair", ["s3://bucket", "s3://bucket/data/"])
def test_a_target_without_a_name_of_its_own_has_another_channel_than_the_data(pair: str) -> None:
    assert job_arguments(pair, "head", [])[2] in (
        "/opt/ml/input/data/bucket", "/opt/ml/input/data/target",
    )  # fmt: skip
    assert job_arguments(pair, "head", [])[2] != "/opt/ml/input/data/data"


def test_a_run_is_the_target_the_options_and_the_data(data: TrainingData, tmp_path: Path) -> None:
    run = make_run("qwen3-8b", ["--epochs", "3"], data, "models")
    assert run == make_run("qwen3-8b", ["--epochs", "3"], data, "models")
    assert run != make_run("qwen3-8b", ["--epochs", "4"], data, "models")
    assert run != make_run("qwen3-8b", ["--epochs", "3"], read(tmp_path, questions(9)), "models")
    assert run.job_name(NOW) != run.job_name(NOW + 1)


def test_what_an_endpoint_captures_grows_and_the_run_keeps_what_it_read_first(
    data: TrainingData, aws: Aws, tmp_path: Path
) -> None:
    first = replace(data, sources=("capture:chat",))
    later = replace(read(tmp_path, questions(90)), sources=("capture:chat",))
    run = make_run("qwen3-8b", [], first, "peagle-jobs")
    assert make_run("qwen3-8b", [], later, "peagle-jobs") == run
    for captured in (first, later):
        start_job(aws, run, captured, request(run), Company())
    key = f"peagle-train/{run.name}/data/train.jsonl"
    rows = aws.call("s3", "get_object", Bucket="peagle-jobs", Key=key)["Body"].read()
    assert rows.count(b"\n") == len(first.train) != len(later.train)


def test_the_job_trains_on_the_same_conversations(
    data: TrainingData, aws: Aws, tmp_path: Path
) -> None:
    run = make_run("qwen3-8b", [], data, "peagle-jobs")
    for _ in range(2):  # repeated: one job
        start_job(aws, run, data, request(run), Company(tags={"team": "search"}))
    assert len(aws.call("sagemaker", "list_training_jobs")["TrainingJobSummaries"]) == 1
    files = {}
    (tmp_path / "copied").mkdir()
    for name in ("train.jsonl", "held_out.jsonl"):
        key = f"peagle-train/{run.name}/data/{name}"
        files[name] = tmp_path / "copied" / name
        body = aws.call("s3", "get_object", Bucket="peagle-jobs", Key=key)["Body"]
        files[name].write_bytes(body.read())
    held_out = files["held_out.jsonl"]
    copied = read_training_data([str(files["train.jsonl"])], lambda: aws, held_out=held_out)
    assert sorted(map(plain, copied.train), key=str) == sorted(map(plain, data.train), key=str)
    assert [*map(plain, copied.held_out)] == [*map(plain, data.held_out)]


def test_a_training_needs_room_on_the_disk() -> None:
    instance = options().instance
    assert not [*job_findings(instance, 70_000_000_000)]
    [full] = job_findings(instance, 3_000_000_000_000)
    assert full.code == "job-disk"


JOB = TrainingJob(
    "job", "Completed", "Completed", "", "", 0.0, "ml.g6e.2xlarge", False, 0, 60, 60,
    "s3://models/out/job/output/model.tar.gz",
)  # fmt: skip


def put_archive(aws: Aws, files: Mapping[str, bytes], link: str = "") -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        if link:
            linked = tarfile.TarInfo("./head/catalog/target")
            linked.type, linked.linkname = tarfile.SYMTYPE, link
            archive.addfile(linked)
    aws.call("s3", "create_bucket", Bucket="models")
    key = JOB.artifact.removeprefix("s3://models/")
    aws.call("s3", "put_object", Bucket="models", Key=key, Body=packed.getvalue())


def test_the_head_of_a_job_is_downloaded_into_a_new_or_empty_folder(
    aws: Aws, tmp_path: Path
) -> None:
    files = {"./head/config.json": b"", "./head/catalog/evidence/tiny.json": b""}
    put_archive(aws, files, link="/opt/ml/input/data/target")
    head = tmp_path / "new" / "head"
    fetch_head(aws, JOB, head)
    assert (head / "config.json").is_file()
    assert sorted(path.name for path in (head / "catalog").iterdir()) == ["evidence"]
    assert [path.name for path in head.parent.iterdir()] == ["head"]
    with raises_code("folder-not-empty"):
        fetch_head(aws, JOB, head)
    (tmp_path / "empty").mkdir()
    fetch_head(aws, JOB, tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").is_file()


@pytest.mark.parametrize("organization", ["peagle", "own"])
def test_the_heads_catalogue_has_a_target_or_is_left_out(
    aws: Aws, tmp_path: Path, organization: str
) -> None:
    entry = f"./head/.catalog/{organization}/tiny.yaml"
    put_archive(aws, {"./head/config.json": b"", entry: b"id: a/b\nweights: ./target\n"})
    fetch_head(aws, JOB, tmp_path / "head")
    catalog = tmp_path / "head" / ".catalog"
    assert catalog.exists() == (organization == "peagle")
    assert (catalog / "peagle" / "target" / "config.json").exists() == catalog.exists()


def test_an_archive_that_writes_elsewhere_leaves_nothing(aws: Aws, tmp_path: Path) -> None:
    put_archive(aws, {"./head/config.json": b"", "../../outside": b""})
    with pytest.raises(tarfile.OutsideDestinationError):
        fetch_head(aws, JOB, tmp_path / "below" / "head")
    assert list(tmp_path.rglob("outside")) == list((tmp_path / "below").iterdir()) == []


CAPACITY = "CapacityError: Unable to provision requested ML compute capacity."


@pytest.mark.parametrize(
    ("status", "stage", "failure", "code"),
    [
        ("Failed", "Failed", "AlgorithmError: no spare token, exit code: 3", "job-failed"),
        ("Failed", "Failed", CAPACITY, InsufficientCapacity.code),
        ("Stopped", "Stopped", "", "job-stopped"),
        ("Stopped", "MaxRuntimeExceeded", "", "job-too-long"),
        ("Stopped", "MaxWaitTimeExceeded", "", "job-too-long"),
    ],
)
def test_a_job_without_a_head_says_why(status: str, stage: str, failure: str, code: str) -> None:
    with pytest.raises(CloudError) as caught:
        require_trained(replace(JOB, status=status, stage=stage, failure=failure))
    assert caught.value.code == code
    assert failure in caught.value.message


def test_an_unknown_job_is_not_found(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code("unknown-job") as raised:
        training.describe_job(aws, "unknown")
    assert raised.value.command[:3] == ("aws", "sagemaker", "list-training-jobs")
    monkeypatch.setattr(Aws, "in_sandbox", True)
    with raises_code("unknown-job") as raised:
        training.describe_job(aws, "unknown")
    assert "peagle sandbox env" in raised.value.fix
