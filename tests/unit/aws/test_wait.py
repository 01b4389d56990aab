"""The wait for an endpoint: what it shows, what ends it early, and how each end is reported."""

import json

import pytest

from peagle.aws.sagemaker import describe
from peagle.deploy.context import SILENT_SECONDS, WillNotServe
from peagle.deploy.removal import remove_failed_start
from peagle.errors import CloudError
from tests.support import raises_code
from tests.unit.aws.cloud import START
from tests.unit.aws.network import refusing
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, World

STARTING = "(APIServer pid=7) INFO 11-22 09:00:00 [a.py:272] non-default args: {'model': 'a'}"
LOADING = "(Worker pid=9) INFO 11-22 09:00:01 [gpu_model_runner.py:2] Starting to load model a..."
OUT_OF_MEMORY = (
    STARTING,
    LOADING,
    "(EngineCore pid=8) ERROR 11-22 09:00:02 [core.py:9] EngineCore failed to start.",
    "(EngineCore pid=8) ERROR 11-22 09:00:02 [core.py:9] Traceback (most recent call last):",
    "(EngineCore pid=8) ERROR 11-22 09:00:02 [core.py:9] torch.OutOfMemoryError: CUDA out of "
    "memory. Tried to allocate 9.00 GiB.",
    "(APIServer pid=7) Traceback (most recent call last):",
    "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.",
)
REFUSED = json.dumps(
    {"time": "t", "level": "ERROR", "stage": "checking", "message": "SM_VLLM_K is no number",
     "event": "refused", "fix": "correct it", "cause": "environment", "exit_code": 2},
    separators=(",", ":"),
)  # fmt: skip
FOREVER: list[tuple[str, str | None]] = [("Creating", None)] * 9000
OTHER = "AllTraffic/i-2"


def logs_when(world: World, operation: str, *lines: str, stream: str = "AllTraffic/i-1") -> None:
    """Write the lines after the first call of ``operation`` that follows."""

    def write(called: str) -> None:
        if called == operation:
            world.cloud.after = lambda _: None
            for line in lines:
                world.cloud.write_log(line, stream)

    world.cloud.after = write


def _fails(world: World, *lines: str) -> WillNotServe:
    """The error of a deploy whose engine logs these lines and is never healthy."""
    world.cloud.next_scripts = [list(FOREVER)]
    logs_when(world, "create_endpoint", *lines)
    with pytest.raises(WillNotServe) as failed:
        world.deploy(a_plan())
    return failed.value


def test_progress_shows_state_time_cost_and_one_clean_line(world: World) -> None:
    world.cloud.next_scripts = [[*[("Creating", None)] * 6, ("InService", None)]]

    def log(operation: str) -> None:
        if operation == "describe_endpoint":
            world.cloud.write_log(LOADING if world.cloud.now > START + 1 else STARTING)

    world.cloud.after = log
    world.deploy(a_plan())
    waiting = [progress for progress in world.shown if progress.state == "Creating"]
    assert [progress.seconds for progress in waiting] == [0, 1, 2, 3, 4]
    assert waiting[-1].cost_usd == pytest.approx(1.408 * 4 / 3600)
    assert waiting[0].line == "the container has started"
    assert waiting[-1].line == "Starting to load model a..."
    assert not any("non-default" in progress.line for progress in world.shown)


@pytest.mark.parametrize("lines", [OUT_OF_MEMORY, (REFUSED,)], ids=["vllm", "entrypoint"])
def test_a_fatal_line_ends_the_wait_at_once_and_deletes_nothing(
    world: World, lines: tuple[str, ...]
) -> None:
    error = _fails(world, *lines)
    assert error.code == "will-not-serve"
    assert error.exit_code == 4
    assert world.cloud.now - START < 5
    assert "delete_endpoint" not in world.cloud.calls
    record = world.saved()
    assert error.message == record.failure.message


@pytest.mark.parametrize("code", ["ThrottlingException", "AccessDeniedException"])
def test_a_log_that_cannot_be_read_does_not_end_the_wait(world: World, code: str) -> None:
    world.cloud.next_scripts = [[*[("Creating", None)] * 5, ("InService", None)]]
    world.cloud.write_log(LOADING)
    world.cloud.before = refusing("filter_log_events", code, "refused")
    world.deploy(a_plan())
    lines = {progress.line for progress in world.shown if progress.state == "Creating"}
    denied = {"(no permission to read the log: logs:FilterLogEvents)"}
    assert lines == (denied if code.startswith("AccessDenied") else {"no log yet"})


@pytest.fixture
def updating(world: World) -> World:
    """An endpoint in service whose engine has logged, and whose next update takes long."""
    logs_when(world, "create_endpoint", STARTING)
    world.deploy(a_plan())
    world.cloud.now += 3600
    world.cloud.next_scripts = [[*[("Updating", None)] * 30, ("InService", None)]]
    return world


def test_the_log_of_the_earlier_revision_is_not_read_during_an_update(updating: World) -> None:
    logs_when(updating, "update_endpoint", *OUT_OF_MEMORY)
    shown = len(updating.shown)
    updating.deploy(another(a_plan()))
    assert updating.state() == "InService"
    assert {
        progress.line for progress in updating.shown[shown:] if progress.state == "Updating"
    } == {"no log yet"}


def test_a_fatal_line_of_the_new_revision_ends_the_wait_for_an_update(updating: World) -> None:
    logs_when(updating, "update_endpoint", *OUT_OF_MEMORY, stream=OTHER)
    with raises_code("update-will-fail", CloudError) as failed:
        updating.deploy(another(a_plan()))
    assert "CUDA out of memory" in failed.value.message
    assert not any(call.startswith("delete_") for call in updating.cloud.calls)
    assert updating.cloud.now - START < 3700


@pytest.mark.parametrize(("status", "code"), [
    ("Failed", "endpoint-failed"),
    ("OutOfService", "endpoint-failed"),
    ("UpdateRollbackFailed", "endpoint-failed"),
    ("InService", "endpoint-rolled-back"),
])  # fmt: skip
def test_each_bad_end_of_an_update_has_its_code(updating: World, status: str, code: str) -> None:
    updating.cloud.next_scripts = [[("Updating", None), (status, "the reason")]]
    logs_when(updating, "update_endpoint", *OUT_OF_MEMORY, stream=OTHER)
    with raises_code(code, CloudError) as failed:
        updating.deploy(another(a_plan()))
    for text in ("the reason", "torch.OutOfMemoryError: CUDA out of memory"):
        assert text in failed.value.message
    assert updating.state() == status


@pytest.mark.thorough
def test_a_start_without_a_log_is_reported_once_and_at_the_end(world: World) -> None:
    world.cloud.next_scripts = [list(FOREVER)]
    with raises_code("endpoint-timeout", CloudError) as silent:
        world.deploy(a_plan())
    (notice,) = [progress for progress in world.shown if progress.is_notice]
    for text in (notice.line, silent.value.message):
        assert "ml.g5.xlarge" in text
    before = [progress.seconds for progress in world.shown[: world.shown.index(notice)]]
    assert max(before) == pytest.approx(SILENT_SECONDS, abs=10)


def test_where_a_creation_cannot_be_deleted_the_removal_waits(world: World) -> None:
    _fails(world, *OUT_OF_MEMORY)
    world.cloud.endpoints[NAME].script = [*[("Creating", None)] * 300, ("Failed", "no ping")]
    remove_failed_start(world.context(world.saved()))
    assert world.cloud.is_empty
    assert world.record() is None


def test_the_removal_of_a_failed_start_keeps_the_revision_that_served(world: World) -> None:
    before = world.deploy(a_plan())
    world.cloud.endpoints[NAME].script = [("Failed", "gone")]
    world.cloud.next_scripts = [[("Creating", None), ("Failed", "no ping")]]
    world.cloud.now += 60
    logs_when(world, "create_endpoint", *OUT_OF_MEMORY)
    with pytest.raises(WillNotServe):
        world.deploy(another(a_plan()))
    remove_failed_start(world.context(world.saved()))
    assert describe(world.aws, NAME) is None
    assert set(world.cloud.configs) == {before.serving.name}
    record = world.saved()
    assert record.serving == before.serving
    assert record.pending is None
    world.deploy(a_plan())
    assert world.state() == "InService"
