"""``peagle train --sagemaker``, and ``status``, ``logs`` and ``stop`` of its jobs, with moto's
SageMaker, whose jobs have no container."""

import io
import json
import tarfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws
from moto.sagemaker.models import sagemaker_backends

from peagle.aws.client import Aws
from peagle.cli import train as cli_train
from peagle.errors import UserError
from peagle.render.resources import trust_policy
from peagle.s3uri import S3Uri
from peagle.train.job import start_job
from tests.support import Done, in_process, raises_code
from tests.unit.aws.conftest import moto_connection
from tests.unit.train.test_data import questions, write

ACCOUNT = "123456789012"
JOB = ("--sagemaker", "--instance-type", "ml.g6.xlarge", "--image", "example/trainer:1")


@pytest.fixture
def aws(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    """An account with a role, in which a job's head is there as soon as it is started."""

    def start(aws: Aws, run: Any, data: Any, request: dict[str, Any], company: Any) -> None:
        original(aws, run, data, request, company)
        place = S3Uri.parse(f"{run.uri('jobs')}/{request['TrainingJobName']}/output/model.tar.gz")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for file in ("config.json", ".catalog/acme/chat.yaml"):
                archive.addfile(tarfile.TarInfo(f"./head/{file}"))
        aws.call("s3", "put_object", Bucket=place.bucket, Key=place.key, Body=packed.getvalue())

    original = start_job
    monkeypatch.setattr(cli_train, "start_job", start)
    monkeypatch.setattr("peagle.aws.client.connect", lambda *_, **__: moto_connection())
    with mock_aws():
        aws = moto_connection()
        trust = json.dumps(trust_policy(ACCOUNT, "sagemaker.amazonaws.com"))
        for name in ("peagle-execution", "peagle-training"):
            aws.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument=trust)
        yield aws


def train(folder: Path, *words: str, pair: str = "tiny") -> Done:
    data = str(write(folder, questions(30)))
    return in_process("train", pair, "--data", data, "-o", str(folder / "head"), *words)


def jobs(aws: Aws) -> list[dict[str, Any]]:
    listed = aws.call("sagemaker", "list_training_jobs")["TrainingJobSummaries"]
    names = [job["TrainingJobName"] for job in listed]
    return [aws.call("sagemaker", "describe_training_job", TrainingJobName=n) for n in names]


def test_a_job_is_started_and_its_head_downloaded(aws: Aws, tmp_path: Path) -> None:
    words = ("--spot", "--max-hours", "3", "--epochs", "2", "--set", "lr=0.001", "--tag", "a=b")
    done = train(tmp_path, *JOB, *words, "--yes", "--json")
    assert done.code == 0, done.err + done.out
    (job,) = jobs(aws)
    assert done.document["name"] == job["TrainingJobName"]
    assert (done.document["status"], done.document["head"]) == (
        "Completed", str(tmp_path / "head"),
    )  # fmt: skip
    assert (tmp_path / "head" / "config.json").is_file()
    assert job["RoleArn"].endswith(":role/peagle-training")
    assert job["EnableManagedSpotTraining"]
    assert job["StoppingCondition"]["MaxRuntimeInSeconds"] == 3 * 3600
    words = job["AlgorithmSpecification"]["ContainerArguments"]
    assert words[:7] == ["train", "run", "tiny", "--epochs", "2", "--set", "lr=0.001"]
    assert not {"--spot", "--sagemaker", "--yes", "--tag", "a=b"} & {*words}


def test_nothing_is_made_before_the_user_agrees(aws: Aws, tmp_path: Path) -> None:
    done = train(tmp_path, *JOB, "--json")
    assert done.refusal["code"] == "confirmation-needed"
    assert "[do-not-train]" in done.err
    assert jobs(aws) == []
    assert aws.call("s3", "list_buckets")["Buckets"] == []


def test_the_same_command_waits_for_the_job_that_runs(
    aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(tmp_path, *JOB, "--yes").code == 0
    (job,) = sagemaker_backends[ACCOUNT]["us-east-1"].training_jobs.values()
    job.training_job_status = "InProgress"

    def sleep(seconds: float) -> None:
        job.training_job_status = "Completed"

    monkeypatch.setattr("peagle.aws.training.time.sleep", sleep)
    again = in_process(
        "train", "tiny", "--data", str(tmp_path / "data.jsonl"), "-o", str(tmp_path / "x" / "head"),
        *JOB, "--spot", "--yes", "--json",
    )  # fmt: skip
    assert again.code == 0, again.err
    assert again.document["name"] == job.training_job_name
    assert (tmp_path / "x" / "head" / "config.json").is_file()
    assert len(jobs(aws)) == 1


def test_a_job_that_failed_says_why(
    aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(aws: Aws, run: Any, data: Any, request: dict[str, Any], company: Any) -> None:
        start(aws, run, data, request, company)
        job: Any = next(iter(sagemaker_backends[ACCOUNT]["us-east-1"].training_jobs.values()))
        job.training_job_status = job.secondary_status = "Failed"
        job.failure_reason = "AlgorithmError: no spare token, exit code: 2"

    start = vars(cli_train)["start_job"]
    monkeypatch.setattr(cli_train, "start_job", fail)
    done = train(tmp_path, *JOB, "--yes", "--json")
    assert (done.code, done.refusal["code"]) == (4, "job-failed")
    assert "no spare token" in done.refusal["message"]
    assert not (tmp_path / "head").exists()


@pytest.mark.parametrize(
    ("pair", "words", "code"),
    [
        ("tiny", ("--spot",), "missing-option"),
        ("tiny", ("--instance-type", "ml.g6.xlarge"), "missing-option"),
        ("tiny", ("--sagemaker", "--yes"), "missing-option"),
        ("tiny", (*JOB, "--max-hours", "0.0001", "--yes"), "usage"),
        ("tiny", (*JOB, "--subnets", "subnet-1"), "invalid-network"),
        ("TARGET", (*JOB, "--yes"), "job-local-target"),
    ],
)
def test_what_a_job_cannot_do_is_refused(
    aws: Aws, tmp_path: Path, pair: str, words: tuple[str, ...], code: str
) -> None:
    target = Path(__file__).parents[3] / "model_catalog" / "peagle" / "tiny" / "target"
    done = train(tmp_path, *words, "--json", pair=pair.replace("TARGET", str(target)))
    assert done.refusal["code"] == code
    assert jobs(aws) == []


def test_status_logs_and_stop_are_of_a_job(aws: Aws, tmp_path: Path) -> None:
    name = train(tmp_path, *JOB, "--yes", "--json").document["name"]
    group = {"logGroupName": "/aws/sagemaker/TrainingJobs"}
    for stream in (f"{name}/algo-1-1", "other/algo-1-1"):
        if stream.startswith(name):
            aws.call("logs", "create_log_group", **group)
        aws.call("logs", "create_log_stream", **group, logStreamName=stream)
        event = {"timestamp": int(time.time() * 1000), "message": f"a line of {stream}"}
        aws.call("logs", "put_log_events", **group, logStreamName=stream, logEvents=[event])
    (job,) = sagemaker_backends[ACCOUNT]["us-east-1"].training_jobs.values()
    job.training_start_time -= timedelta(hours=1)
    status = in_process("train", "status", name, "--json").document
    planned = in_process("plan", "tiny", "--instance-type", "ml.g6.xlarge", "--json").document
    assert status["status"] == "Completed"
    assert status["usd"] == pytest.approx(planned["price_per_hour_usd"], rel=0.02)
    lines = in_process("train", "logs", name, "--follow")
    assert lines.out == f"a line of {name}/algo-1-1\n"
    events = in_process("train", "logs", name, "--follow", "--json").document["events"]
    assert [event["message"] for event in events] == [f"a line of {name}/algo-1-1"]
    assert in_process("train", "stop", name, "--json").document["status"] == "Completed"
    fetched = in_process("train", "status", name, "-o", str(tmp_path / "again"))
    assert (tmp_path / "again" / "config.json").is_file()
    assert f"peagle --catalog {tmp_path}/again/.catalog plan acme/chat" in fetched.out
    full = in_process("train", "status", name, "-o", str(tmp_path / "again"), "--json")
    assert full.refusal["code"] == "folder-not-empty"
    for verb in ("status", "logs", "stop"):
        assert in_process("train", verb, "no", "--json").refusal["code"] == "unknown-job"


def test_a_job_leaves_its_error_where_sagemaker_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEAGLE_ML_ROOT", str(tmp_path))

    @cli_train.reporting_failure()
    def fail() -> None:
        raise UserError("no spare token", "choose one", "no-mask-token")

    with raises_code("no-mask-token"):
        fail()
    assert not (tmp_path / "output").exists()
    monkeypatch.setenv("TRAINING_JOB_NAME", "job")
    with raises_code("no-mask-token"):
        fail()
    assert (tmp_path / "output" / "failure").read_text() == "no spare token (choose one)"
