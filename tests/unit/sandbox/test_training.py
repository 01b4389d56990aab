"""Training jobs of the sandbox, with a short program in the place of ``peagle``."""

import io
import json
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.logs.models import logs_backends
from moto.s3.models import s3_backends

from peagle.protocol import TRAINING_LOG_GROUP
from peagle.sandbox import account, state
from peagle.sandbox.client import ACCOUNT, EXECUTION_ROLE
from peagle.sandbox.faults import FAULTS, Fault
from peagle.sandbox.sagemaker import HANDLERS, SageMakerBackend
from peagle.sandbox.training import TrainingJob
from tests.sandbox.sandboxes import record_daemon

pytestmark = pytest.mark.thorough

REGION, BUCKET, TYPE = "us-east-1", "peagle-jobs", "ml.g6e.2xlarge"
PROGRAM = """
import json, os, pathlib, signal, sys, time
what, data, saved, model = sys.argv[1], *map(pathlib.Path, sys.argv[2:])
before = sorted(path.name for path in saved.iterdir())
print("begins with", *before, flush=True)
if what == "fail":
    (model.parent / "output" / "failure").write_text("no spare token\\n")
    sys.exit(3)
if what == "crash":
    print("a message")
    sys.exit(1)
def leave(*_):
    (model / "left.txt").write_text("left")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
(saved / str(len(before))).write_text("saved")
if what == "wait" or (what == "resume" and not before):
    time.sleep(60)
result = {"text": data.read_text(), "before": before, "job": os.environ["TRAINING_JOB_NAME"]}
(model / "result.json").write_text(json.dumps(result))
"""

Start = Callable[..., TrainingJob]


@pytest.fixture
def backend(own_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(TrainingJob, "program", (sys.executable, str(program)))
    monkeypatch.setattr("peagle.sandbox.training._POLL_SECONDS", 0.01)
    monkeypatch.setattr(account, "check_role", lambda *_: None)
    record_daemon()
    bucket = s3_backends[ACCOUNT]["aws"]
    bucket.create_bucket(BUCKET, REGION)
    bucket.put_object(BUCKET, "in/conversations.jsonl", b"{}\n")
    backend = SageMakerBackend(REGION, ACCOUNT)
    yield backend
    backend.reset()
    FAULTS.clear()
    account.forget()
    s3_backends[ACCOUNT]["aws"].reset()
    logs_backends[ACCOUNT][REGION].reset()


def request(what: str, name: str = "job", **changes: Any) -> dict[str, Any]:
    folder = "/opt/ml"
    data = {"S3Uri": f"s3://{BUCKET}/in/conversations.jsonl", "S3DataType": "S3Prefix"}
    return {
        "TrainingJobName": name,
        "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/{EXECUTION_ROLE}",
        "AlgorithmSpecification": {
            "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.28.0",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["peagle"],
            "ContainerArguments": [
                what, f"{folder}/input/data/data/conversations.jsonl", f"{folder}/checkpoints",
                f"{folder}/model",
            ],
        },
        "InputDataConfig": [{"ChannelName": "data", "DataSource": {"S3DataSource": data}}],
        "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/out"},
        "CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/saved/run"},
        "ResourceConfig": {"InstanceType": TYPE, "InstanceCount": 1, "VolumeSizeInGB": 50},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        **changes,
    }  # fmt: skip


SPOT: dict[str, Any] = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 120},
}


def call(backend: Any, operation: str, **parameters: Any) -> dict[str, Any]:
    return HANDLERS[operation](backend, parameters)


def ended(backend: Any, name: str = "job") -> dict[str, Any]:
    backend.training_jobs[name]._thread.join(20)
    return call(backend, "DescribeTrainingJob", TrainingJobName=name)


def stages(job: dict[str, Any]) -> list[str]:
    return [transition["Status"] for transition in job["SecondaryStatusTransitions"]]


def objects() -> dict[str, bytes]:
    return {
        key: item.value for key, item in s3_backends[ACCOUNT]["aws"].buckets[BUCKET].keys.items()
    }


def model(name: str = "job") -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(objects()[f"out/{name}/output/model.tar.gz"])) as archive:
        files = [member for member in archive if member.isfile()]
        return {
            file.name.removeprefix("./"): archive.extractfile(file).read().decode()
            for file in files
        }


def until(check: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)


def log() -> list[str]:
    streams = logs_backends[ACCOUNT][REGION].groups[TRAINING_LOG_GROUP].streams
    return [event.message for stream in streams.values() for event in stream.events]


def test_a_job_reads_its_channel_saves_checkpoints_and_leaves_a_model(backend: Any) -> None:
    call(backend, "CreateTrainingJob", **request("train"))
    job = ended(backend)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Completed", "Completed")
    assert stages(job) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert job["ModelArtifacts"]["S3ModelArtifacts"] == f"s3://{BUCKET}/out/job/output/model.tar.gz"
    result = json.loads(model()["result.json"])
    assert result == {"text": "{}\n", "before": [], "job": "job"}
    assert objects()["saved/run/0"] == b"saved"
    assert log() == ["begins with"]
    assert list(state.endpoints_folder().glob("*/*/*")) == []
    assert state.living_engines() == ()


def test_an_interrupted_spot_job_goes_on_from_its_checkpoint(backend: Any) -> None:
    FAULTS.add(Fault("CreateTrainingJob", "spot-interruption", seconds=0.5))
    call(backend, "CreateTrainingJob", **request("resume", **SPOT))
    job = ended(backend)
    once = ["Starting", "Downloading", "Training"]
    assert stages(job) == [*once, "Interrupted", *once, "Uploading", "Completed"]
    assert json.loads(model()["result.json"])["before"] == ["0"]
    assert log() == ["begins with", "begins with 0"]


@pytest.mark.parametrize(("what", "reason"), [("fail", "no spare token"), ("crash", "a message")])
def test_the_reason_of_a_failure_is_what_the_program_wrote(
    backend: Any, what: str, reason: str
) -> None:
    call(backend, "CreateTrainingJob", **request(what))
    job = ended(backend)
    assert job["TrainingJobStatus"] == job["SecondaryStatus"] == "Failed"
    assert reason in job["FailureReason"]
    assert "out/job/output/model.tar.gz" not in objects()


def test_without_capacity_nothing_runs(backend: Any) -> None:
    FAULTS.add(Fault("CreateTrainingJob", "insufficient-capacity", instance_type=TYPE))
    call(backend, "CreateTrainingJob", **request("train"))
    job = ended(backend)
    assert (job["TrainingJobStatus"], stages(job)) == ("Failed", ["Starting", "Failed"])
    assert job["FailureReason"].startswith("CapacityError")


@pytest.mark.parametrize("by", ["stop", "runtime"])
def test_a_job_that_is_stopped_keeps_what_it_has(backend: Any, by: str) -> None:
    seconds: dict[str, Any] = {
        "StoppingCondition": {"MaxRuntimeInSeconds": 1 if by == "runtime" else 60}
    }
    call(backend, "CreateTrainingJob", **request("wait", **seconds))
    if by == "stop":
        until(lambda: list(state.endpoints_folder().rglob("checkpoints/0")))
        call(backend, "StopTrainingJob", TrainingJobName="job")
    job = ended(backend)
    assert job["TrainingJobStatus"] == "Stopped"
    assert job["SecondaryStatus"] == ("Stopped" if by == "stop" else "MaxRuntimeExceeded")
    assert model() == {"left.txt": "left"}
    assert objects()["saved/run/0"] == b"saved"
    with pytest.raises(Exception, match="in status Stopped"):
        call(backend, "StopTrainingJob", TrainingJobName="job")


def test_jobs_are_listed_by_name_and_state(backend: Any) -> None:
    for name in ("job-1", "job-2", "other"):
        call(backend, "CreateTrainingJob", **request("train", name))
        ended(backend, name)

    def names(**parameters: str) -> list[str]:
        listed = call(backend, "ListTrainingJobs", **parameters)["TrainingJobSummaries"]
        return [job["TrainingJobName"] for job in listed]

    assert names(NameContains="job") == ["job-2", "job-1"]
    assert names(StatusEquals="Failed") == []
    assert len(names()) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"TrainingJobName": "first"}, "already exists"),
        ({"AlgorithmSpecification": {"TrainingImage": f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/"
                                     "x:1"}}, "not found"),
        ({"AlgorithmSpecification": {"ContainerEntrypoint": ["sh", "-c"]}}, "peagle"),
        ({"ResourceConfig": {"InstanceType": TYPE, "InstanceCount": 3}}, "training job usage"),
    ],
)  # fmt: skip
def test_what_the_account_lacks_is_refused_as_aws_does(
    backend: Any, changes: dict[str, Any], message: str
) -> None:
    call(backend, "CreateTrainingJob", **request("train", "first"))
    ended(backend, "first")
    with pytest.raises(Exception, match=message):
        call(backend, "CreateTrainingJob", **request("train", **changes))
    with pytest.raises(Exception, match="not found"):
        call(backend, "DescribeTrainingJob", TrainingJobName="unknown")


def test_the_end_of_the_sandbox_ends_a_job(backend: Any) -> None:
    call(backend, "CreateTrainingJob", **request("wait"))
    until(state.living_engines)
    backend.reset()
    assert state.living_engines() == ()
