"""A deployment whose copies share each instance, as an inference component."""

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.deploy.state import utc_moment, utc_text
from peagle.render.resources import copies_limit_name, limit_name
from tests.support import with_keys
from tests.unit.cli.commands import NAME, Terminal, without_record

pytestmark = pytest.mark.thorough
COPIES = ("deploy", "tiny", "--instance-type", "ml.g5.12xlarge", "--copies", "4", "--yes")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal(monkeypatch)
    made.cloud.quotas["ml.g5.12xlarge for endpoint usage"] = 4
    return made


def status_of(terminal: Terminal) -> dict[str, Any]:
    """The document of ``peagle status``."""
    status: dict[str, Any] = json.loads(terminal.run("status", NAME, "--json").out)
    return status


def test_other_instances_are_refused(terminal: Terminal) -> None:
    assert terminal.run(*COPIES).code == 0
    for words in (("--instance-count", "2"), ("--copies", "1", "--instance-type", "ml.g5.xlarge")):
        done = terminal.run(*COPIES, *words)
        assert (done.code, "update_endpoint" in terminal.cloud.calls) == (3, False)
        assert "replaces their model only" in done.err


def test_copies_are_found_by_tags_and_destroyed(terminal: Terminal) -> None:
    assert terminal.run(*COPIES).code == 0
    assert terminal.run(*COPIES, "--k", "3").code == 0
    without_record(terminal)
    status = status_of(terminal)
    assert (status["copies"], status["copies_running"], status["k"]) == (4, 4, 3)
    assert NAME in terminal.run("list").out
    assert terminal.run("rollback", NAME, "--yes").code == 0
    terminal.succeeds("destroy", NAME, "--yes")
    assert not terminal.cloud.components
    assert not {**terminal.cloud.endpoints, **terminal.cloud.models, **terminal.cloud.configs}


@pytest.mark.parametrize("call", ["create_endpoint", "create_inference_component"])
def test_an_interrupted_deploy_continues(terminal: Terminal, call: str) -> None:
    terminal.interrupts(call, after=True)
    assert terminal.run(*COPIES).code != 0
    terminal.recovers()
    terminal.succeeds(*COPIES)
    assert terminal.cloud.calls.count("create_endpoint") == 1
    assert terminal.cloud.calls.count("create_inference_component") == 1


def test_copies_are_observed_by_the_metrics_and_the_log_of_the_component(
    terminal: Terminal,
) -> None:
    assert terminal.run(*COPIES, "--observe").code == 0
    log = f"/aws/sagemaker/InferenceComponents/{NAME}"
    assert terminal.cloud.retention == {log: 30}
    ((dashboard, body),) = terminal.cloud.dashboards.items()
    texts = [json.dumps(widget["properties"]) for widget in json.loads(body)["widgets"]]
    metrics = [text for text in texts if "AWS/SageMaker" in text]
    assert metrics
    assert all(f'"InferenceComponentName", "{NAME}"' in text for text in metrics)
    assert all(f"SOURCE '{log}'" in text for text in texts if "SOURCE" in text)
    assert terminal.run("destroy", NAME, "--yes").code == 0
    assert dashboard not in terminal.cloud.dashboards


def test_the_copies_are_deleted_before_their_endpoint_at_its_end(terminal: Terminal) -> None:
    assert terminal.run(*COPIES, "--ttl", "8h").code == 0
    schedules = terminal.cloud.schedules
    endpoint, copies = schedules[limit_name("us-east-1", NAME)], schedules[OF_COPIES]
    ends, first = moment_of(endpoint), moment_of(copies)
    assert status_of(terminal)["ends_at"] == utc_text(ends)
    assert ends - first == 600
    terminal.cloud.now = ends - 60
    terminal.cloud.fire_schedules()
    assert (NAME in terminal.cloud.components, NAME in terminal.cloud.endpoints) == (False, True)
    terminal.cloud.now = ends
    terminal.cloud.fire_schedules()
    assert terminal.cloud.endpoints == {}
    (reaped,) = terminal.run("reap", "--yes", "--json").document["reaped"]
    assert reaped["error"] is None
    assert terminal.cloud.is_empty


OF_COPIES = copies_limit_name("us-east-1", NAME)


def moment_of(schedule: Any) -> float:
    """When it fires, in epoch seconds."""
    moment = utc_moment(f"{schedule.schedule_expression[3:-1]}Z")
    assert moment is not None
    return moment


ROLLING = ("--rollout", "rolling", "--slo", "ttft=0.5")


def test_an_update_replaces_the_copies_in_batches_that_alarms_watch(
    terminal: Terminal, tmp_path: Path
) -> None:
    assert terminal.run(*COPIES).code == 0
    done = terminal.succeeds(*with_keys(tmp_path, COPIES, rollout_step=1), "--k", "3", *ROLLING)
    assert "1 more instance meanwhile" in " ".join(done.err.split())
    (config,) = terminal.cloud.rollouts
    assert config is not None
    policy = config["RollingUpdatePolicy"]
    assert policy["MaximumBatchSize"] == {"Type": "COPY_COUNT", "Value": 1}
    assert policy["WaitIntervalInSeconds"] == 600
    names = {alarm["AlarmName"] for alarm in config["AutoRollbackConfiguration"]["Alarms"]}
    assert names == set(terminal.cloud.made_alarms)
    assert f"{NAME}-ttft-p90" in names
    assert terminal.cloud.log_groups == {f"/aws/sagemaker/InferenceComponents/{NAME}"}
    without_record(terminal)
    assert terminal.run("destroy", NAME, "--yes").code == 0
    assert terminal.cloud.made_alarms == terminal.cloud.metric_filters == {}


def copies(terminal: Terminal) -> int:
    return int(terminal.cloud.components[NAME].copies)


# ``peagle invoke`` of an endpoint that scaled to zero: it waits, and shows for how long.
ASK = ("invoke", NAME, "Say hello")


@pytest.fixture
def asleep(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A deployment that scaled to zero, and time that passes a thousand times as fast."""
    monkeypatch.setattr("peagle.deploy.invoke.RETRY_SECONDS", 0.005)
    assert terminal.run(*COPIES, "--scale-to-zero").code == 0
    sleep(terminal)
    return terminal


def sleep(terminal: Terminal) -> None:
    terminal.cloud.scale_copies(NAME, 0)
    status = status_of(terminal)
    assert (status["copies_running"], status_of(terminal)["state"]) == (0, "InService")


def wake_at(terminal: Terminal, refusals: int) -> None:
    """Let a copy run after so many refused requests."""
    seen = 0

    def after(operation: str) -> None:
        nonlocal seen
        seen += operation.startswith(("describe_scalable", "invoke"))
        if seen == refusals:
            terminal.cloud.scale_copies(NAME, 1)

    terminal.cloud.after = after


def test_the_first_refusal_becomes_a_wait_with_progress(asleep: Terminal) -> None:
    wake_at(asleep, 1)
    done = asleep.run(*ASK)
    assert (done.code, done.out) == (0, "Hello world\n"), done.err
    assert f"{NAME} wakes up: 0s" in done.err
    assert "woke up after 0.0 s" in done.err


@pytest.mark.parametrize("words", [ASK, ("prove", NAME)])
def test_nobody_waits_for_copies_that_nothing_starts(
    asleep: Terminal, words: tuple[str, ...]
) -> None:
    late = asleep.run(*ASK, "--wake-timeout", "0s")
    assert asleep.run("scale", NAME, "--off", "--yes").code == 0
    never = asleep.run(*words)
    assert (late.code, "did not wake up within 0s" in late.err) == (4, True)
    assert (never.code, f"peagle scale {NAME} --to 1" in never.err) == (4, True), never.err


def test_a_proof_wakes_what_sleeps_and_proves_the_copies_that_run(asleep: Terminal) -> None:
    wake_at(asleep, 1)
    done = asleep.succeeds("prove", NAME, "--json")
    assert f"{NAME} wakes up: 0s" in done.err
    assert (done.document["instance_count"], len(done.document["instances"])) == (1, 1)
