"""Training jobs in the sandbox, which run as processes of this machine:

    Create    Starting -> Downloading -> Training -> Uploading -> Completed | Failed
    Stop      Stopping -> Uploading -> Stopped; so does the maximum runtime
    spot      by the fault ``spot-interruption`` a job is interrupted once, and begins again

A folder stands for ``/opt/ml``: input channels and checkpoints come from moto's S3, checkpoints are
copied there when the program ends, and at last the folder ``model`` is packed. Whatever image a job
names, its command is one of ``peagle``, by the toolkit's own Python. A job has one thread.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil
from moto.core.utils import utcnow
from moto.sagemaker.exceptions import ValidationError

from peagle.engine.process import EngineProcess, drain_engine, start_program, stop_engine
from peagle.errors import PeagleError
from peagle.protocol import TRAINING_LOG_GROUP
from peagle.s3uri import S3Uri
from peagle.sandbox import account, state
from peagle.sandbox.client import INHERITED
from peagle.sandbox.faults import AT_START, FAULTS, INTERRUPTION, Fault
from peagle.sandbox.launch import put_object, save_objects
from peagle.sandbox.observability import LogTail
from peagle.store import HOME_VARIABLE, home, private_folder
from peagle_serve.contract import ML_ROOT, ROOT_VARIABLE

ENDED = ("Completed", "Failed", "Stopped")

_POLL_SECONDS = 0.1
_STOP_SECONDS = 120.0
"""From SIGTERM to SIGKILL, as on AWS."""

_NO_CAPACITY = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a "
    "different ML instance type."
)
_LONGEST_REASON = 1024


class _JobFailed(Exception):
    """The job fails; the message is its FailureReason."""


class TrainingJob:
    """A job of CreateTrainingJob with these ``parameters``, which ``check_job`` accepts.
    ``program`` is what ``peagle`` is on this machine."""

    program: tuple[str, ...] = (sys.executable, "-m", "peagle.cli")

    def __init__(self, arn: str, region: str, parameters: Mapping[str, Any]) -> None:
        self.arn, self.region, self.parameters = arn, region, parameters
        self.name: str = parameters["TrainingJobName"]
        self.instance_type: str = parameters["ResourceConfig"]["InstanceType"]
        self.is_spot = bool(parameters.get("EnableManagedSpotTraining"))
        self.tags = list(parameters.get("Tags") or [])
        self.status, self.failure_reason = "InProgress", ""
        self.creation_time = self.last_modified_time = utcnow()
        self.transitions: list[dict[str, Any]] = []
        self._begun = self._ended = 0.0
        self._folder = state.endpoints_folder() / region / self.name / "training"
        self._ml_root, self._log = self._folder / "ml", self._folder / "engine.log"
        self._checkpoints = self._ml_root / "checkpoints"
        self._checkpoints_uri: str = parameters["CheckpointConfig"]["S3Uri"].rstrip("/")
        self._fault: Fault | None = None
        self._interrupted_after = math.inf
        self._stops = threading.Event()
        self._process: EngineProcess | None = None
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def begin(self) -> None:
        """Run the job in the background."""
        self._go_on("Starting", "Preparing the instances for training")
        meeting = ("sagemaker", "CreateTrainingJob")
        self._fault = FAULTS.meet(*meeting, AT_START, [self.instance_type])
        if self.is_spot:
            interruption = FAULTS.meet(*meeting, [INTERRUPTION], [self.instance_type])
            self._interrupted_after = interruption.seconds if interruption else math.inf
        self._thread.start()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after two minutes."""
        self.status = "Stopping"
        self._go_on("Stopping", "Stopping the training job")
        self._stops.set()

    def end(self) -> None:
        """End its process at once; return when nothing is left."""
        self._stops.set()
        if self._process:
            stop_engine(self._process, 0)
        self._thread.join()

    @property
    def summary(self) -> dict[str, Any]:
        """The job in the response of ListTrainingJobs."""
        summary = {
            "TrainingJobName": self.name,
            "TrainingJobArn": self.arn,
            "CreationTime": self.creation_time,
            "LastModifiedTime": self.last_modified_time,
            "TrainingJobStatus": self.status,
            "SecondaryStatus": self.transitions[-1]["Status"],
        }
        ended = {"TrainingEndTime": self.last_modified_time}
        return summary | ended if self.status in ENDED else summary

    @property
    def response_object(self) -> dict[str, Any]:
        """The response of DescribeTrainingJob."""
        seconds = int((self._ended or time.time()) - self._begun) if self._begun else 0
        reason = {"FailureReason": self.failure_reason} if self.failure_reason else {}
        return {
            **{name: value for name, value in self.parameters.items() if name != "Tags"},
            **self.summary,
            **reason,
            "ModelArtifacts": {"S3ModelArtifacts": self._artifact},
            "SecondaryStatusTransitions": self.transitions,
            "TrainingTimeInSeconds": seconds,
            "BillableTimeInSeconds": seconds,
        }

    @property
    def _artifact(self) -> str:
        output: str = self.parameters["OutputDataConfig"]["S3OutputPath"]
        return f"{output.rstrip('/')}/{self.name}/output/model.tar.gz"

    def _go_on(self, status: str, message: str) -> None:
        """Begin another secondary status."""
        self.last_modified_time = utcnow()
        if self.transitions:
            self.transitions[-1]["EndTime"] = self.last_modified_time
        transition = {"Status": status, "StartTime": self.last_modified_time}
        self.transitions.append(transition | {"StatusMessage": message})

    def _run(self) -> None:
        secondary = "Failed"
        stream = f"{self.name}/algo-1-{int(time.time())}"
        tail = LogTail(self._log, self.region, TRAINING_LOG_GROUP, stream, str)
        try:
            tail.start()
            if self._fault and self._fault.kind == "insufficient-capacity":
                raise _JobFailed(_NO_CAPACITY)
            while (ended := self._run_once()) == "Interrupted":
                self._interrupted_after = math.inf
                self._go_on("Interrupted", "The spot instance was taken away")
                self._go_on("Starting", "Preparing the instances for training")
            self._go_on("Uploading", "Uploading generated training model")
            self._upload_model()
            secondary = ended
        except (_JobFailed, PeagleError, OSError, ValueError) as error:
            self.failure_reason = str(error)[:_LONGEST_REASON]
        except Exception:  # a bug must not leave it in progress
            traceback.print_exc()
            self.failure_reason = "Internal error of the sandbox; see its log (daemon.log)."
        tail.end()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._ended = time.time()
        self._go_on(secondary, self.failure_reason)
        self.status = secondary if secondary in ENDED else "Stopped"

    def _run_once(self) -> str:
        """Run the program until it ends or is ended; the secondary status then. Raises _JobFailed,
        PeagleError and OSError."""
        self._go_on("Downloading", "Downloading input data")
        shutil.rmtree(self._ml_root, ignore_errors=True)
        for folder in (self._ml_root / "model", self._ml_root / "output"):
            private_folder(folder)
        for channel in self.parameters.get("InputDataConfig") or ():
            folder = self._ml_root / "input" / "data" / channel["ChannelName"]
            save_objects(channel["DataSource"]["S3DataSource"]["S3Uri"], folder, self.region)
        save_objects(f"{self._checkpoints_uri}/", self._checkpoints, self.region)
        if self._stops.is_set():
            return "Stopped"
        self._go_on("Training", "Training in progress")
        self._begun = self._begun or time.time()
        until = self._begun + self.parameters["StoppingCondition"]["MaxRuntimeInSeconds"]
        process, secondary = self._start(), "Completed"
        while (code := _exit_code(process)) is None:
            if self._stops.is_set():
                secondary = "Stopped"
            elif time.time() > until:
                secondary = "MaxRuntimeExceeded"
            elif time.time() > self._begun + self._interrupted_after:
                secondary = "Interrupted"
            if secondary != "Completed":
                _terminate(process)
                break
            time.sleep(_POLL_SECONDS)
        state.forget_engine(process)
        for path in sorted(self._checkpoints.rglob("*")):  # SageMaker copies while it runs, too
            if path.is_file():
                uri = f"{self._checkpoints_uri}/{path.relative_to(self._checkpoints)}"
                put_object(S3Uri.parse(uri), path.read_bytes(), self.region)
        if code:
            raise _JobFailed(f"AlgorithmError: {self._failure()}, exit code: {code}")
        return secondary

    def _start(self) -> EngineProcess:
        specification = self.parameters["AlgorithmSpecification"]
        words = specification["ContainerEntrypoint"][1:] + specification["ContainerArguments"]
        daemon = state.read_daemon()
        assert daemon is not None, "it runs this job"
        environment = {
            **{name: os.environ[name] for name in INHERITED if name in os.environ},
            **daemon.environment(self.region),
            HOME_VARIABLE: str(home()),
            ROOT_VARIABLE: str(self._ml_root),
            "TRAINING_JOB_NAME": self.name,
            "TRAINING_JOB_ARN": self.arn,
            "PYTHONUNBUFFERED": "1",
        }

        def record(process: EngineProcess) -> None:
            state.register_engine(process)
            self._process = process

        argv = [*self.program, *map(self._here, words)]
        return start_program(argv, environment, 0, self._log, record)

    def _here(self, text: str) -> str:
        """A path in the container as it is on this machine; other text as it is."""
        inside = text == ML_ROOT or text.startswith(f"{ML_ROOT}/")
        return f"{self._ml_root}{text.removeprefix(ML_ROOT)}" if inside else text

    def _failure(self) -> str:
        """What the program wrote about its failure, else the last line of its log."""
        file = self._ml_root / "output" / "failure"
        text: str = (file if file.is_file() else self._log).read_text("utf-8", "replace")
        return text.strip().rpartition("\n")[2]

    def _upload_model(self) -> None:
        archive = self._folder / "model.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=1) as written:
            written.add(self._ml_root / "model", ".")
        put_object(S3Uri.parse(self._artifact), archive.read_bytes(), self.region)


def check_job(parameters: Mapping[str, Any], region: str) -> None:
    """Raise AWS's error for what the job needs and the account does not have, and ValidationError
    for what the sandbox does not run."""
    account.check_role(parameters["RoleArn"], region)
    specification = parameters["AlgorithmSpecification"]
    image = specification.get("TrainingImage") or ""
    if account.is_missing_image(image):
        raise ValidationError(f"Requested image {image} not found.")
    if list(specification.get("ContainerEntrypoint") or ())[:1] != ["peagle"]:
        raise ValidationError("The sandbox runs training jobs whose ContainerEntrypoint is peagle.")


def _exit_code(process: EngineProcess) -> int | None:
    """The exit code of our child, which is reaped; ``None`` while it runs."""
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:  # ``end`` has reaped it
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status) if pid else None


def _terminate(process: EngineProcess) -> None:
    """End the program as SageMaker does, and then every process that it has left."""
    children = list[psutil.Process]()
    with suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True)
    drain_engine(process, _STOP_SECONDS)
    stop_engine(process, 0)
    for child in children:
        with suppress(psutil.Error):
            child.kill()
