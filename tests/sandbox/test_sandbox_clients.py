"""AWS's clients work with the sandbox, each with the variables of ``peagle sandbox env`` alone.

boto3 is that of the tests; the others have environments of their own below ``.venv/clients``, which
are made once. Terraform is in test_owners_terraform.py, CloudFormation in test_sandbox_stacks.py.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from peagle.engine.machine import pip_settings, uv_variables
from tests.sandbox.sandboxes import IMAGE, INSTANCE_TYPE, ROLE, Sandbox

pytestmark = pytest.mark.sandbox
ENVIRONMENTS = Path(__file__).parents[2] / ".venv" / "clients"


def in_shell(sandbox: Sandbox, *command: str, folder: Path) -> str:
    """What a command prints in a shell that has no AWS variables but those of ``env``."""
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    variables |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    script = f'{sandbox.peagle("sandbox", "env").stdout}\nexec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *command],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(requirement: str) -> Path:
    """The programs of an environment with this package of Python."""
    folder = ENVIRONMENTS / requirement
    if not (folder / "complete").exists():
        environment = {**os.environ, **uv_variables(pip_settings())}
        make = [find_uv_bin(), "venv", "--clear", "--python", sys.executable, str(folder)]
        install = [find_uv_bin(), "pip", "install", "--python", folder / "bin/python", requirement]
        for command in (make, install):
            subprocess.run([*command, "--quiet"], env=environment, check=True)
        (folder / "complete").touch()
    return folder / "bin"


CLI_2 = (
    "awscli", "awscrt", "colorama", "dateutil", "distro", "docutils", "jmespath", "prompt-toolkit",
    "roman", "ruamel.yaml", "ruamel.yaml.clib", "six", "urllib3", "wcwidth",
)  # fmt: skip
"""Debian's package of version 2, and what it needs of Python."""


def installed_cli_2() -> Path:
    """The ``aws`` of Debian's packages, which are not installed into the system."""
    folder = ENVIRONMENTS / "awscli-2"
    if not (folder / "aws").exists():
        folder.mkdir(parents=True, exist_ok=True)
        names = [name if name == "awscli" else f"python3-{name}" for name in CLI_2]
        subprocess.run(["apt-get", "download", *names], cwd=folder, check=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], check=True)
        packages, program = folder / "usr/lib/python3/dist-packages", folder / "usr/bin/aws"
        script = f'#!/bin/sh\nPYTHONPATH={packages} exec /usr/bin/python3 {program} "$@"\n'
        (folder / "aws").write_text(script)
        (folder / "aws").chmod(0o755)
    return folder / "aws"


def test_boto3_needs_only_the_variables(sandbox: Sandbox, tmp_path: Path, live: str) -> None:
    code = (
        "import boto3; print(*[e['EndpointName'] for e in"
        " boto3.client('sagemaker').list_endpoints()['Endpoints']])"
    )
    assert in_shell(sandbox, sys.executable, "-c", code, folder=tmp_path).split() == [live]


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", [
    1, pytest.param(2, marks=pytest.mark.skipif(not shutil.which("dpkg"), reason="not Debian")),
])  # fmt: skip
def test_the_aws_cli(sandbox: Sandbox, tmp_path: Path, live: str, version: int) -> None:
    program = installed("awscli==1.45.11") / "aws" if version == 1 else installed_cli_2()

    def aws(*arguments: str) -> str:
        # Debian's version 2 did not follow AWS_ENDPOINT_URL yet.
        address = ("--endpoint-url", sandbox.address.url) if version == 2 else ()
        return in_shell(sandbox, str(program), *address, *arguments, folder=tmp_path)

    name = ("--endpoint-name", live)
    described = json.loads(aws("sagemaker", "describe-endpoint", *name, "--output", "json"))
    assert described["EndpointStatus"] == "InService"
    (tmp_path / "question.json").write_text('{"a": 1}')
    body = ("--body", "fileb://question.json", "answer.json")
    aws("sagemaker-runtime", "invoke-endpoint", *name, *body)
    assert json.loads((tmp_path / "answer.json").read_text())["body"] == '{"a": 1}'
    (tmp_path / "weights").write_text("w")
    aws("s3", "cp", "weights", "s3://models/cli/weights")
    assert "weights" in aws("s3", "ls", "s3://models/cli/")
    group = f"/aws/sagemaker/Endpoints/{live}"
    assert "fake: INFO starting" in aws("logs", "filter-log-events", "--log-group-name", group)


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not on this machine")
def test_curl_signs_its_requests(sandbox: Sandbox, tmp_path: Path, live: str) -> None:
    key = sandbox.address.key
    shown = in_shell(
        sandbox, "curl", "-sS", "--aws-sigv4", "aws:amz:us-east-1:sagemaker",
        "--user", f"{key.id}:{key.secret}", "-H", "X-Amz-Target: SageMaker.ListEndpoints",
        "-H", "Content-Type: application/x-amz-json-1.1", "-d", "{}", sandbox.address.url,
        folder=tmp_path,
    )  # fmt: skip
    (endpoint,) = json.loads(shown)["Endpoints"]
    assert endpoint["EndpointName"] == live


SDK_2 = """
import json, sys
from sagemaker.deserializers import JSONDeserializer
from sagemaker.model import Model
from sagemaker.predictor import Predictor
from sagemaker.serializers import JSONSerializer

image, role, instance_type = sys.argv[1:]
weights = {"S3Uri": "s3://models/tiny/", "S3DataType": "S3Prefix", "CompressionType": "None"}
model = Model(image, {"S3DataSource": weights}, role, predictor_cls=Predictor, name="by-sdk-2")
predictor = model.deploy(1, instance_type, endpoint_name="by-sdk-2",
                         serializer=JSONSerializer(), deserializer=JSONDeserializer())
json.dump(predictor.predict({"a": 2}), open("answer.json", "w"))
predictor.delete_endpoint()
model.delete_model()
"""
SDK_3 = """
import json, sys
from sagemaker.core.resources import Endpoint, EndpointConfig, Model
from sagemaker.core.shapes import ContainerDefinition, ProductionVariant
from sagemaker.core.shapes import ModelDataSource, S3ModelDataSource

image, role, instance_type = sys.argv[1:]
weights = S3ModelDataSource(s3_uri="s3://models/tiny/", s3_data_type="S3Prefix",
                            compression_type="None")
container = ContainerDefinition(
    image=image, model_data_source=ModelDataSource(s3_data_source=weights))
model = Model.create(model_name="by-sdk-3", execution_role_arn=role, primary_container=container)
variant = ProductionVariant(variant_name="v", model_name="by-sdk-3", initial_instance_count=1,
                            instance_type=instance_type)
config = EndpointConfig.create(endpoint_config_name="by-sdk-3", production_variants=[variant])
endpoint = Endpoint.create(endpoint_name="by-sdk-3", endpoint_config_name="by-sdk-3")
endpoint.wait_for_status("InService", poll=1)
response = endpoint.invoke(body=json.dumps({"a": 2}), content_type="application/json")
open("answer.json", "wb").write(response.body.read())
endpoint.delete()
endpoint.wait_for_delete(poll=1)
config.delete()
model.delete()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("requirement", "program"),
    [("sagemaker==2.257.7", SDK_2), ("sagemaker-core==2.27.0", SDK_3)],
    ids=["2", "3"],
)
@pytest.mark.usefixtures("account")
def test_the_sagemaker_sdk(
    sandbox: Sandbox, tmp_path: Path, requirement: str, program: str
) -> None:
    python = installed(requirement) / "python"
    arguments = (IMAGE, ROLE, INSTANCE_TYPE)
    in_shell(sandbox, str(python), "-c", program, *arguments, folder=tmp_path)
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert json.loads(answer["body"]) == {"a": 2}


JAVASCRIPT = """
import { SageMakerClient, ListEndpointsCommand, DescribeEndpointCommand }
  from "@aws-sdk/client-sagemaker";
import { SageMakerRuntimeClient, InvokeEndpointCommand, InvokeEndpointWithResponseStreamCommand }
  from "@aws-sdk/client-sagemaker-runtime";

const sagemaker = new SageMakerClient({}), runtime = new SageMakerRuntimeClient({});
const names = (await sagemaker.send(new ListEndpointsCommand({}))).Endpoints;
const EndpointName = names[0].EndpointName;
const unknown = new DescribeEndpointCommand({ EndpointName: "unknown" });
const error = await sagemaker.send(unknown).catch((error) => error);
const whole = await runtime.send(new InvokeEndpointCommand({ EndpointName, Body: '{"a": 3}' }));
const Body = JSON.stringify({ do: "stream", chunks: ["one ", "two"] });
const answer = await runtime.send(
  new InvokeEndpointWithResponseStreamCommand({ EndpointName, Body }));
let text = "";
for await (const event of answer.Body) text += new TextDecoder().decode(event.PayloadPart.Bytes);
const { body } = JSON.parse(new TextDecoder().decode(whole.Body));
console.log(JSON.stringify([EndpointName, error.name, error.message, body, text]));
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("npm"), reason="npm is not on this machine")
def test_the_javascript_sdk(sandbox: Sandbox, live: str) -> None:
    folder = ENVIRONMENTS / "javascript"
    if not (folder / "node_modules").exists():
        folder.mkdir(parents=True, exist_ok=True)
        packages = ("@aws-sdk/client-sagemaker", "@aws-sdk/client-sagemaker-runtime")
        install = ("npm", "install", "--silent", "--no-audit", "--prefix", str(folder))
        subprocess.run([*install, *packages], check=True)
    (folder / "program.mjs").write_text(JAVASCRIPT)
    shown = in_shell(sandbox, "node", "program.mjs", folder=folder)
    name, code, message, body, text = json.loads(shown)
    assert (name, code, body, text) == (live, "ValidationException", '{"a": 3}', "one two")
    assert message.startswith("Could not find endpoint")
