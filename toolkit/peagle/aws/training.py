"""SageMaker's training jobs: one typed function per call, and why a job has failed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from peagle.aws.client import Aws
from peagle.aws.errors import Missing, failed_start, lacks_capacity
from peagle.aws.runtime import Tail
from peagle.errors import CloudError, Fix, NotFound
from peagle.protocol import TRAINING_LOG_GROUP

ENDED = ("Completed", "Failed", "Stopped", "Deleted")
"""States that a job does not leave."""

_CAPACITY_FIX = Fix("choose another --instance-type or --region, or leave out --spot")
_POLL_SECONDS, _SANDBOX_SECONDS = 5.0, 0.2


@dataclass(frozen=True)
class TrainingJob:
    """A job as SageMaker describes it. ``stage`` is its secondary status, ``interruptions`` how
    often a spot instance was taken away, ``billable_seconds`` what is paid for of
    ``training_seconds``. ``artifact`` is where its model is, or will be."""

    name: str
    status: str
    stage: str
    message: str
    failure: str
    created: float
    instance_type: str
    is_spot: bool
    interruptions: int
    training_seconds: int
    billable_seconds: int
    artifact: str


def describe_job(aws: Aws, name: str) -> TrainingJob:
    """The job. Raises NotFound when there is none of that name."""
    try:
        response = aws.call("sagemaker", "describe_training_job", TrainingJobName=name)
    except Missing as error:
        command = ("aws", "sagemaker", "list-training-jobs", "--region", aws.region)
        where = ", with the variables of `peagle sandbox env`" if aws.in_sandbox else ""
        fix = Fix(f"list the jobs{where}", command)
        message = f"there is no training job {name} in {aws.region}"
        raise NotFound(message, fix, "unknown-job") from error
    begun = response.get("TrainingStartTime")  # the times are of a job that has ended
    so_far = round(time.time() - begun.timestamp()) if begun else 0
    seconds = response.get("TrainingTimeInSeconds") or so_far
    transitions = response.get("SecondaryStatusTransitions") or [{}]
    resources = response.get("ResourceConfig") or {}
    return TrainingJob(
        name=name,
        status=response["TrainingJobStatus"],
        stage=response["SecondaryStatus"],
        message=transitions[-1].get("StatusMessage", ""),
        failure=response.get("FailureReason", ""),
        created=response["CreationTime"].timestamp(),
        instance_type=resources.get("InstanceType", ""),
        is_spot=bool(response.get("EnableManagedSpotTraining")),
        interruptions=sum(each.get("Status") == "Interrupted" for each in transitions),
        training_seconds=seconds,
        billable_seconds=response.get("BillableTimeInSeconds") or seconds,
        artifact=(response.get("ModelArtifacts") or {}).get("S3ModelArtifacts", ""),
    )


def find_running_job(aws: Aws, part: str) -> str | None:
    """The name of the newest job in progress whose name contains ``part``."""
    listed = aws.items(
        "sagemaker", "list_training_jobs", "TrainingJobSummaries",
        NameContains=part, StatusEquals="InProgress", SortBy="CreationTime", SortOrder="Descending",
    )  # fmt: skip
    return next((str(job["TrainingJobName"]) for job in listed), None)


def stop_job(aws: Aws, name: str) -> TrainingJob:
    """StopTrainingJob, unless it has ended or is ending; the job afterwards. What it has saved
    stays in S3."""
    job = describe_job(aws, name)
    if job.status == "InProgress":
        aws.call("sagemaker", "stop_training_job", TrainingJobName=name)
        job = describe_job(aws, name)
    return job


def follow_job(aws: Aws, name: str) -> Iterator[tuple[TrainingJob, Tail]]:
    """The job, again and again until it has ended, and what reads its log."""
    job = describe_job(aws, name)
    tail = Tail(aws, job.name, job.created, group=TRAINING_LOG_GROUP, prefix=f"{job.name}/")
    yield job, tail
    while job.status not in ENDED:
        time.sleep(_SANDBOX_SECONDS if aws.in_sandbox else _POLL_SECONDS)
        job = describe_job(aws, name)
        yield job, tail


def require_trained(job: TrainingJob) -> None:
    """Raise a CloudError for a job that has ended without a model, with SageMaker's reason."""
    again = "the same command again goes on from the last checkpoint"
    logs = Fix(f"{again}; see its log", ("peagle", "train", "logs", job.name))
    if job.stage in ("MaxRuntimeExceeded", "MaxWaitTimeExceeded"):
        limit = "maximum runtime" if job.stage == "MaxRuntimeExceeded" else "longest wait for spot"
        message = f"the {limit} of the job {job.name} has passed"
        raise CloudError(message, f"{again}; allow more with --max-hours", "job-too-long")
    if job.status == "Stopped":
        raise CloudError(f"the job {job.name} was stopped", again, "job-stopped")
    if job.status != "Completed":
        fix = _CAPACITY_FIX if lacks_capacity(job.failure) else logs
        message = f"the job {job.name} failed: {job.failure or job.message or job.stage}"
        raise failed_start(job.failure, message, fix, "job-failed")
