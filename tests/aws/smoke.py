"""Take the tiny pair through its life on an AWS account: deploy, proof, update, a failed proof that
rolls back, rollback, a second machine, logs, invoke, destroy.

    python -m tests.aws.smoke          # asks first, and says what it costs

It needs credentials, an execution role and a quota of 2 instances. It removes what it made at the
end, also after an error or Ctrl-C, and compares what the account has before and after. What it saw
goes to a file of evidence, as it happens. With AWS_ENDPOINT_URL of a sandbox it runs there.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import boto3

from peagle import __version__
from peagle.catalog import load_catalog
from peagle.options import Options
from peagle.planning import make_plan
from peagle.render import plan_bytes
from peagle.store import write_json

NAME = "peagle-smoke"
PEAGLE = str(Path(sys.executable).with_name("peagle"))
EVIDENCE = Path("model_catalog/evidence/aws-smoke.json")
INSTANCE_TYPE = "ml.g6.xlarge"
"""The cheapest type with a GPU on which vLLM runs with CUDA 13 and bfloat16."""
HOURS = 0.5
"""A guess of the time on AWS: five starts of an engine, four of them beside another."""
LOG_GROUPS = "/aws/sagemaker/Endpoints/"
_KEPT = ("state", "k", "proved", "passed", "acceptance_length", "drafts", "instance_type",
         "endpoint_config",
         "price_per_hour_usd", "rolled_back", "text", "first_token_seconds")  # fmt: skip
"""Keys of a command's JSON document that the evidence keeps."""


class StepFailed(Exception):
    """A step did not end as it must."""


@dataclass
class Step:
    """A command that ran: its exit code, time in seconds, and what its JSON said."""

    what: str
    command: list[str]
    code: int
    seconds: float
    saw: dict[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass
class Smoke:
    """One run. ``options`` are those of the account: region and profile."""

    homes: tuple[Path, Path]
    options: tuple[str, ...]
    deploying: tuple[str, ...]
    instance: str
    region: str | None
    output: Path
    steps: list[Step] = field(default_factory=list)

    def run(self, folder: Path) -> None:
        """All steps; raises StepFailed at the first that does not end as it must."""
        here, there = self.homes
        deploy = ("deploy", "tiny", "--name", NAME, "--yes", *self.deploying)
        self.step("deploy and prove", here, *deploy, expected={"state": "InService"})
        self.step("read the log", here, "logs", NAME)
        self.step("invoke", here, "invoke", NAME, "Say hello", "--max-tokens", "32")
        self.step("update K", here, *deploy, "--k", "3", expected={"k": 3, "proved": True})
        unreachable = self.unreachable_plan(folder)
        self.step("an update whose proof fails", here, "deploy", str(unreachable), "--yes", code=3)
        self.step("the revision before serves", here, "status", NAME,
                  expected={"k": 3, "state": "InService"})  # fmt: skip
        self.step("roll back", here, "rollback", NAME, "--yes")
        self.step("found on a second machine", there, "status", NAME,
                  expected={"state": "InService"})  # fmt: skip
        self.step("prove there", there, "prove", NAME)
        self.step("destroy there", there, "destroy", NAME, "--all", "--yes")

    def unreachable_plan(self, folder: Path) -> Path:
        """The plan in a file, with a floor that no draft reaches."""
        options = Options(pair="tiny", name=NAME, region=self.region, instance_type=self.instance)
        plan = make_plan(options, load_catalog())
        assert plan.speculation is not None
        unreachable = {"acceptance_floor": plan.speculation.k + 1.0}
        speculation = plan.speculation.model_copy(update=unreachable)
        path = folder / "unreachable.json"
        path.write_bytes(plan_bytes(plan.model_copy(update={"speculation": speculation})))
        return path

    def step(
        self,
        what: str,
        home: Path,
        *arguments: str,
        code: int = 0,
        expected: dict[str, Any] | None = None,
    ) -> None:
        """Run a command, record it, and compare its end."""
        began = time.monotonic()
        print(f"{what}: peagle {' '.join(arguments)}", flush=True)
        done = self.peagle(home, (*arguments, *self.options, "--json"))
        document = _document(done.stdout)
        saw = {key: document[key] for key in _KEPT if key in document}
        seconds = round(time.monotonic() - began, 1)
        error = done.stderr.strip().splitlines()[-1:] if done.returncode else []
        self.steps.append(
            Step(what, ["peagle", *arguments], done.returncode, seconds, saw, "".join(error))
        )
        self.write()
        wrong = {key: saw.get(key) for key, value in (expected or {}).items()
                 if saw.get(key) != value}  # fmt: skip
        print(f"  exit code {done.returncode} after {seconds} s {saw}", flush=True)
        if done.returncode != code or wrong:
            raise StepFailed(f"{what}: exit code {done.returncode} instead of {code}, {wrong}; "
                             f"{done.stderr.strip()}")  # fmt: skip

    def peagle(self, home: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command with that home, apart from this terminal's Ctrl-C."""
        return subprocess.run(
            [PEAGLE, *arguments],
            env={**os.environ, "PEAGLE_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )

    def clean_up(self) -> None:
        """Remove what is left; Ctrl-C does not end it."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for home in self.homes:
                self.peagle(home, ("destroy", NAME, "--all", "--yes", *self.options))
        finally:
            signal.signal(signal.SIGINT, before)

    def write(self, **more: Any) -> None:
        """Write the evidence as far as it is known."""
        document = {
            "script": "tests/aws/smoke.py",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "toolkit": __version__,
            "python": platform.python_version(),
            "endpoint_url": os.environ.get("AWS_ENDPOINT_URL"),
            "steps": [asdict(step) for step in self.steps],
        }
        write_json(self.output, document | more)


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def inventory(session: boto3.Session) -> list[str]:
    """Everything of the account that a smoke could leave behind."""
    sagemaker = session.client("sagemaker")
    resources = [
        f"{kind} {entry[key]}"
        for kind, operation, listed, key in (
            ("Endpoint", "list_endpoints", "Endpoints", "EndpointName"),
            ("EndpointConfig", "list_endpoint_configs", "EndpointConfigs", "EndpointConfigName"),
            ("Model", "list_models", "Models", "ModelName"),
        )
        for page in sagemaker.get_paginator(operation).paginate()
        for entry in page[listed]
    ]
    s3 = session.client("s3")
    resources += [f"S3Bucket {bucket['Name']}" for bucket in s3.list_buckets()["Buckets"]]
    groups = session.client("logs").get_paginator("describe_log_groups")
    for page in groups.paginate(logGroupNamePrefix=LOG_GROUPS):
        resources += [f"LogGroup {group['logGroupName']}" for group in page["logGroups"]]
    return sorted(resources)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every step ended as it must and the account is as before."""
    options = _options(arguments)
    account = ["--region", options.region] if options.region else []
    account += ["--profile", options.profile] if options.profile else []
    deploying = ["--instance-type", options.instance_type]
    deploying += ["--role", options.role] if options.role else []
    place = os.environ.get("AWS_ENDPOINT_URL", "AWS")
    price = _price(options.instance_type)
    print(
        f"Deploys the tiny pair on {options.instance_type} in {place}, updates it, and removes it"
    )
    print(f"again: about {HOURS * 60:.0f} minutes, about ${HOURS * 2 * price:.2f}.")
    if not options.yes and input("Continue? [y/N] ").strip().lower() not in ("y", "yes"):
        print("Nothing was created.")
        return 2
    session = boto3.Session(profile_name=options.profile, region_name=options.region)
    with TemporaryDirectory() as folder:
        homes = (Path(folder) / "first", Path(folder) / "second")
        default = Path(EVIDENCE.name) if "AWS_ENDPOINT_URL" in os.environ else EVIDENCE
        smoke = Smoke(
            homes,
            tuple(account),
            tuple(deploying),
            options.instance_type,
            options.region,
            options.output or default,
        )
        return _run(smoke, session, Path(folder))


def _run(smoke: Smoke, session: boto3.Session, folder: Path) -> int:
    before = inventory(session)
    if f"Endpoint {NAME}" in before:
        print(f"An endpoint called {NAME} exists: another smoke runs, or one was killed.")
        print(f"Remove it:  peagle destroy {NAME} --all")
        return 2
    failure = ""
    try:
        smoke.run(folder)
    except (StepFailed, KeyboardInterrupt) as error:
        failure = str(error) or "Ctrl-C"
        print(f"{failure}\nRemoving what exists.", flush=True)
    finally:
        smoke.clean_up()
    left = sorted(set(inventory(session)) - set(before))
    ours = [resource for resource in left if NAME in resource or "peagle" in resource]
    smoke.write(failure=failure or None, left=ours)
    print(f"Wrote {smoke.output}.")
    for resource in ours:
        print(f"LEFT: {resource}")
    return 1 if failure or ours else 0


def _price(instance_type: str) -> float:
    """USD per hour; AWS's price for us-east-1, as the catalogue has it."""
    instances = load_catalog().instances.instances
    prices = [
        price
        for instance in instances
        if instance.type == instance_type
        for price in instance.prices
    ]
    return prices[0].usd_per_hour if prices else 1.5


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.aws.smoke", description=__doc__)
    parser.add_argument("--instance-type", default=INSTANCE_TYPE, help="default: %(default)s")
    parser.add_argument("--region", help="default: that of the environment")
    parser.add_argument("--profile", help="AWS profile")
    parser.add_argument("--role", help="execution role")
    parser.add_argument(
        "--output", type=Path, help=f"default: {EVIDENCE}; with AWS_ENDPOINT_URL {EVIDENCE.name}"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
