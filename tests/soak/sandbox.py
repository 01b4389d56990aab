"""The AWS sandbox under load: updated, scaled, and its engines killed."""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EventStreamError,
    HTTPClientError,
    ReadTimeoutError,
)

from peagle.aws.client import Aws, Keys, connect
from peagle.data import data_folder
from peagle.engine.machine import Engine
from peagle.sandbox.client import ACCOUNT, EXECUTION_ROLE
from tests.soak.streams import Broken, Events, Refused, post
from tests.soak.targets import RESTARTS, SILENCE_SECONDS, START_SECONDS, VLLM, children, kill_engine

_TOKEN_SECONDS = 3600.0


class Sandbox:
    """An endpoint in a sandbox of its own, with two instances; vLLM's is ``peagle deploy tiny``."""

    name = "sandbox"
    routes: tuple[str, ...] = ("response-stream", "openai")
    refuses_in_drain = False

    def __init__(self, engine: Engine, folder: Path, is_stub: bool) -> None:
        self.events = Events()
        self._is_stub = is_stub
        self._settings = {"PEAGLE_HOME": str(folder), "PEAGLE_ENGINE_PYTHON": str(engine.python)}
        self._endpoint = "soak"
        self._configs = 0
        self._token = ("", 0.0)
        self._lock = threading.Lock()

    def start(self) -> None:
        self._peagle("sandbox", "start")
        environment = json.loads(self._peagle("sandbox", "env", "--json"))
        self._url = environment["AWS_ENDPOINT_URL"]
        keys = Keys(environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"])
        self._aws: Aws = connect("us-east-1", endpoint_url=self._url, keys=keys)
        self._daemon = json.loads(self._peagle("sandbox", "status", "--json"))["pid"]
        self._sagemaker = self._aws.client("sagemaker")
        config = Config(
            retries={"total_max_attempts": 1}, max_pool_connections=64,
            read_timeout=SILENCE_SECONDS, connect_timeout=SILENCE_SECONDS,
        )  # fmt: skip
        self._runtime = boto3.client(
            "sagemaker-runtime", region_name="us-east-1", endpoint_url=self._url, config=config,
            aws_access_key_id=keys.access_key, aws_secret_access_key=keys.secret_key,
        )  # fmt: skip
        if self._is_stub:
            self._create()
        else:
            self._peagle("deploy", "tiny", "--name", self._endpoint, "--sandbox", "--yes")
        environment = self._sagemaker.describe_endpoint(EndpointName=self._endpoint)
        config = environment["EndpointConfigName"]
        environment = self._sagemaker.describe_endpoint_config(EndpointConfigName=config)
        self._variant = environment["ProductionVariants"][0]
        self._peagle("sandbox", "quota", "set", self._variant["InstanceType"], "8")

    def stream(self, route: str, body: bytes) -> Iterator[bytes]:
        if route == "response-stream":
            yield from self._invoke(body)
            return
        path = f"/endpoints/{self._endpoint}/openai/v1/chat/completions"
        headers = {"Authorization": f"Bearer {self._bearer()}"}
        port = urlsplit(self._url).port
        assert port is not None
        yield from post(port, path, headers, body, SILENCE_SECONDS)

    def acts(self) -> tuple[Callable[[random.Random], None], ...]:
        return (self._update, self._scale, self._kill)

    def processes(self) -> dict[str, list[int]]:
        return {"sandbox": [self._daemon], "supervisor": self._supervisors()}

    def end(self) -> None:
        self._peagle("sandbox", "stop")

    def _invoke(self, body: bytes) -> Iterator[bytes]:
        try:
            answer = self._runtime.invoke_endpoint_with_response_stream(
                EndpointName=self._endpoint, Body=body, ContentType="application/json"
            )
        except ReadTimeoutError as error:
            raise TimeoutError(str(error)) from error
        except (BotoCoreError, ClientError) as error:
            raise Refused(str(error)[:300]) from error
        with contextlib.closing(answer["Body"]) as parts:
            try:
                for part in parts:
                    yield part["PayloadPart"]["Bytes"]
            except EventStreamError as error:
                raise Broken(str(error)[:300]) from error
            except ReadTimeoutError as error:
                raise TimeoutError(str(error)) from error
            except (BotoCoreError, HTTPClientError, OSError) as error:
                raise Broken(f"{type(error).__name__} {error}"[:300]) from error

    def _bearer(self) -> str:
        with self._lock:
            token, at = self._token
            if not token or time.monotonic() - at > _TOKEN_SECONDS:
                token, at = self._aws.bearer_token(), time.monotonic()
            self._token = token, at
            return token

    def _create(self) -> None:
        """An endpoint with the tiny target's weights."""
        s3 = self._aws.client("s3")
        s3.create_bucket(Bucket="soak")
        for file in (data_folder("model_catalog") / "peagle" / "tiny" / "target").iterdir():
            s3.upload_file(str(file), "soak", f"target/{file.name}")
        source = {"S3Uri": "s3://soak/target/", "S3DataType": "S3Prefix", "CompressionType": "None"}
        self._sagemaker.create_model(
            ModelName="soak", ExecutionRoleArn=f"arn:aws:iam::{ACCOUNT}:role/{EXECUTION_ROLE}",
            PrimaryContainer={
                "Image": f"763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:{VLLM}",
                "Environment": RESTARTS, "ModelDataSource": {"S3DataSource": source},
            },
        )  # fmt: skip
        self._variant = {
            "VariantName": "AllTraffic", "ModelName": "soak", "InstanceType": "ml.g6e.2xlarge",
            "InitialInstanceCount": 2,
        }  # fmt: skip
        name = self._config()
        self._sagemaker.create_endpoint(EndpointName=self._endpoint, EndpointConfigName=name)
        self._wait()

    def _config(self) -> str:
        self._configs += 1
        name = f"soak-{self._configs}"
        self._sagemaker.create_endpoint_config(
            EndpointConfigName=name, ProductionVariants=[self._variant]
        )
        return name

    def _update(self, chance: random.Random) -> None:
        """A new configuration, with instances of its own; the old one is deleted afterwards."""
        before = self._sagemaker.describe_endpoint(EndpointName=self._endpoint)
        with self.events.during("update"):
            name = self._config()
            self._sagemaker.update_endpoint(EndpointName=self._endpoint, EndpointConfigName=name)
            after = self._wait()
        if after["EndpointConfigName"] != name:
            self.events.errors.append(f"the update failed: {after.get('FailureReason')}")
        old = before["EndpointConfigName"]
        self._sagemaker.delete_endpoint_config(EndpointConfigName=old)

    def _scale(self, chance: random.Random) -> None:
        """One instance more, then one fewer: it is drained."""
        with self.events.during("drain"):
            for count in (2, 1) if self._variant["InitialInstanceCount"] == 1 else (3, 2):
                self._sagemaker.update_endpoint_weights_and_capacities(
                    EndpointName=self._endpoint,
                    DesiredWeightsAndCapacities=[
                        {"VariantName": self._variant["VariantName"],
                         "DesiredInstanceCount": count},
                    ],
                )  # fmt: skip
                self._wait()

    def _kill(self, chance: random.Random) -> None:
        supervisor = chance.choice(self._supervisors())
        kill_engine(self.events, supervisor, chance)

    def _supervisors(self) -> list[int]:
        return [pid for pid in children(self._daemon) if children(pid)]

    def _wait(self) -> Any:
        """The endpoint, once it is stable."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            endpoint = self._sagemaker.describe_endpoint(EndpointName=self._endpoint)
            if endpoint["EndpointStatus"] == "InService":
                return endpoint
            if endpoint["EndpointStatus"] == "Failed":
                break
            time.sleep(0.2)
        raise AssertionError(f"{endpoint['EndpointStatus']}: {endpoint.get('FailureReason')}")

    def _peagle(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "peagle.cli", *arguments], env={**os.environ, **self._settings},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(f"peagle {' '.join(arguments)}: {done.stderr}")
        return done.stdout
