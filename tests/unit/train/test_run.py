"""The steps of a training: what is made again, what is kept, which epoch is chosen."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.engine.gpus import Gpu, Gpus
from peagle.engine.logs import crash_error
from peagle.errors import EngineError, NotProved, PeagleError
from peagle.planning.plan import Plan
from peagle.store import locked
from peagle.train import run as running
from peagle.train.run import EventReader, TrainProgress, trainer_error
from tests.support import raises_code
from tests.unit.train.trainings import Workshop, make_workshop


@pytest.fixture(name="shop")
def make_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return make_workshop(tmp_path, monkeypatch)


TRAIN = ["states", "generate-offline-data", "train"]
ALL = ["dry-run", "regenerate-responses", "prepare-data", *TRAIN]
ENGINES = ["untrained", "answers", "states"]
COMPARED = ["lossless", "lossless"]


def test_the_epoch_with_the_longest_acceptance_is_chosen_not_the_least_loss(shop: Workshop) -> None:
    shop.lengths = {"0": 2.5, "1": 2.1, "2": 1.9}
    trained = shop.train(epochs=3)
    assert shop.calls == ALL
    assert shop.engines == [*ENGINES, *["measured"] * 3, *COMPARED]
    assert [epoch.loss for epoch in trained.epochs] == [5.0, 4.0, 3.0]
    assert (trained.best.number, trained.best.length) == (0, 2.5)


def test_answers_that_the_head_changes_are_counted_once_for_a_head(shop: Workshop) -> None:
    assert shop.train(epochs=1).lossless["passed"]
    shop.last_token = 4
    assert shop.train(epochs=1).lossless["passed"]  # not compared again
    shop.lengths = {"1": 2.5}
    compared = shop.train(epochs=2).lossless
    assert (compared["unexplained"], compared["prompts"]) == (2, 2)
    assert not compared["passed"]


def test_the_time_so_far_has_that_of_the_calls_before(shop: Workshop) -> None:
    shop.train()
    marker = shop.training.work / "training" / "step.json"
    document = json.loads(marker.read_text())
    marker.write_text(json.dumps({**document, "seconds": 3600.0}))
    seen: list[float] = []
    shop.train(epochs=3, observe=lambda now: seen.append(now.seconds))
    assert 3600 <= seen[0] <= seen[-1] < 7200


def test_the_same_command_makes_nothing_again_and_more_epochs_continue(shop: Workshop) -> None:
    shop.train()
    shop.engines.clear()
    assert shop.train().best.number == 0
    assert (shop.calls, shop.engines) == (ALL, [])
    assert len(shop.train(epochs=3).epochs) == 3
    assert shop.calls == [*ALL, *TRAIN]
    assert shop.engines == ["states", "measured"]  # the same head is the best


def test_what_was_trained_before_an_error_is_kept(shop: Workshop) -> None:
    (shop.folder / "fail").write_text("torch.OutOfMemoryError: CUDA out of memory.")
    with raises_code("trainer-out-of-memory"):
        shop.train()
    (shop.folder / "fail").unlink()
    assert len(shop.train().epochs) == 2
    assert shop.calls == [*ALL[:-1], *TRAIN]  # the failed call wrote none


def test_ctrl_c_and_sigterm_let_the_trainer_save(shop: Workshop) -> None:
    (shop.folder / "slow").touch()

    def interrupt(progress: TrainProgress) -> None:
        if progress.step == "training" and progress.total:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)  # until the signal is there

    with pytest.raises(KeyboardInterrupt):
        shop.train(observe=interrupt)
    assert (shop.folder / "interrupted").exists()


def test_an_engine_that_ended_ends_the_trainer_and_says_why(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_ROOM", 10**12)
    (shop.folder / "slow").touch()
    (shop.folder / "engine.log").write_text("torch.OutOfMemoryError: CUDA out of memory.")
    monkeypatch.chdir(shop.folder)
    events = shop.training.work / "training" / "events.jsonl"
    monkeypatch.setattr(running, "is_alive", lambda process: not events.exists())
    with pytest.raises(EngineError) as failed:
        shop.train()
    assert failed.value.code == crash_error(shop.folder / "engine.log").code
    assert "out of memory" in failed.value.message
    assert (shop.folder / "interrupted").exists()


def test_without_room_for_hidden_states_the_trainer_asks_the_engine_in_each_epoch(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_ROOM", 10**12)
    assert len(shop.train().epochs) == 2
    assert shop.calls == [step for step in ALL if step != "generate-offline-data"]


def test_several_gpus_train_and_several_clients_ask_for_hidden_states(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [
        Gpu(n, f"GPU-{n}", "NVIDIA H200", 143_771, 143_000, "hopper", 4800, 989) for n in (0, 1)
    ]
    machine = Gpus("580.159.04", "13.0", tuple(cards))
    monkeypatch.setattr(running, "visible_gpus", lambda: machine)
    shop.training = replace(shop.training, setup=replace(shop.training.setup, gpu=True))
    assert len(shop.train().epochs) == 2
    assert shop.calls == [*ALL[:-2], "generate-offline-data in 4", "train in 2"]
    asked = {step: shop.variables[step]["SM_VLLM_MAX_NUM_SEQS"] for step in ("answers", "states")}
    assert asked == {"answers": "256", "states": "256"}


def test_one_process_trains_at_a_time(shop: Workshop) -> None:
    shop.training.work.mkdir(parents=True)
    with locked(shop.training.work / "lock"), raises_code("already-running"):
        shop.train()
    assert shop.calls == []


def test_a_checkpoint_that_was_not_saved_to_its_end_is_made_again(shop: Workshop) -> None:
    (shop.folder / "full").touch()
    with raises_code("disk-full"):
        shop.train(epochs=1)
    (shop.folder / "full").unlink()
    assert len(shop.train(epochs=1).epochs) == 1
    assert shop.calls == [*ALL[:-1], *TRAIN]


def test_a_step_that_needs_less_memory_goes_on_from_the_last_checkpoint(shop: Workshop) -> None:
    (shop.folder / "fail").write_text("torch.OutOfMemoryError: CUDA out of memory.")
    with pytest.raises(PeagleError):
        shop.train(epochs=2)
    (shop.folder / "fail").unlink()
    kept = shop.training.work / "training" / "checkpoints" / "0"
    begun = (kept / "training_state.json").stat().st_mtime_ns
    assert len(shop.train(epochs=2, settings={"max-anchors": "64"}).epochs) == 2
    assert (kept / "training_state.json").stat().st_mtime_ns == begun


def test_an_error_is_of_this_call_and_not_of_one_before(shop: Workshop) -> None:
    for text, code in (("[Errno 28] No space left on device", "disk-full"),
                       ("RuntimeError: circuit breaker", "trainer-failed")):  # fmt: skip
        (shop.folder / "fail").write_text(text)
        with raises_code(code):
            shop.train(epochs=3)


def test_two_trainings_of_a_target_have_engines_of_their_own(shop: Workshop) -> None:
    names: list[str] = []
    shop.on_start = lambda plan: names.append(plan.name)
    shop.train(epochs=1)
    first = set(names)
    names.clear()
    shop.change(output=shop.folder / "other")
    shop.train(epochs=1)
    assert not first & set(names)


def test_few_answers_end_it_before_the_training(shop: Workshop) -> None:
    (shop.folder / "answers").write_text("3")
    with raises_code("few-answers"):
        shop.train()
    (shop.folder / "answers").unlink()
    assert shop.train().best.length == 1.5


def test_fewer_epochs_after_a_longer_training_has_failed(shop: Workshop) -> None:
    shop.train(epochs=2)
    (shop.folder / "fail").write_text("torch.OutOfMemoryError: CUDA out of memory.")
    with pytest.raises(PeagleError):
        shop.train(epochs=3)
    (shop.folder / "fail").unlink()
    assert shop.train(epochs=2).best.length == 1.5


def test_other_data_is_trained_from_the_beginning(shop: Workshop) -> None:
    shop.train(epochs=1)
    data = replace(shop.training.data, train=shop.training.data.train[:-1], sha256="1" * 64)
    shop.training = replace(shop.training, data=data)
    assert len(shop.train(epochs=1).epochs) == 1
    assert shop.calls == [*ALL, *ALL]


def test_an_untrained_head_whose_drafts_are_not_accepted_is_as_expected(shop: Workshop) -> None:
    def refuse(plan: Plan) -> None:
        if plan.name.endswith("untrained"):
            raise NotProved("acceptance length 1.00 over 400 drafts")

    shop.on_start = refuse
    assert shop.train().best.length == 1.5


def test_an_untrained_head_that_drafts_nothing_ends_it_before_the_training(shop: Workshop) -> None:
    def refuse(plan: Plan) -> None:
        if plan.name.endswith("untrained"):
            raise NotProved("the engine drafts nothing", code="drafts-nothing")

    shop.on_start = refuse
    with pytest.raises(NotProved):
        shop.train()
    assert "train" not in shop.calls


def test_an_epoch_that_is_not_accepted_is_not_chosen(shop: Workshop) -> None:
    def refuse(plan: Plan) -> None:
        if plan.drafter and plan.drafter.weights and plan.drafter.weights.location.endswith("/0"):
            raise NotProved("acceptance length 1.00 over 400 drafts")

    shop.on_start = refuse
    assert [epoch.number for epoch in shop.train().epochs] == [1]


def test_states_that_are_not_the_targets_end_it_before_the_training(shop: Workshop) -> None:
    states = {"tokens": 100, "same": 0.4, "difference": 0.3}
    (shop.folder / "states.json").write_text(json.dumps(states))
    with raises_code("states-differ"):
        shop.train()
    assert "train" not in shop.calls


RECORDED = """\
{"time": 1795844079.1902273, "kind": "start", "epochs": 2, "steps": 25, "step": 0}
{"time": 1795844092.8504403, "kind": "step", "epoch": 0, "step": 0, "loss": 7.797979354858398, \
"tokens": 255.0}
{"time": 1795844093.1, "kind": "step", "epoch": 0, "step": 1, "loss": 7.1, \
"tokens": 254.0}
{"time": 1795844109.1, "kind": "step", "epoch": 0, "step": 24, "loss": 5.328765869140625, \
"tokens": 256.0}
{"time": 1795844117.9192398, "kind": "val", "epoch": 0, "step": null, "loss": 5.123009204864502}
"""


def test_progress_is_read_from_the_trainers_events(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    reader = EventReader(file)
    assert reader.progress().total == 0
    for line in RECORDED.splitlines(keepends=True):
        with file.open("a") as stream:
            stream.write(line[:20])
        reader.progress()
        with file.open("a") as stream:
            stream.write(line[20:])
        progress = reader.progress()
    assert (progress.done, progress.total, progress.epoch, progress.epochs) == (25, 50, 0, 2)
    assert progress.loss == pytest.approx(5.33, abs=0.01)
    assert progress.seconds_left == pytest.approx(25 * 16 / 23)
    assert reader.losses == {"0": pytest.approx(5.12, abs=0.01)}


def test_an_epoch_with_more_steps_than_the_first_has_no_time_left_below_zero(
    tmp_path: Path,
) -> None:
    file = tmp_path / "events.jsonl"
    step = {"kind": "step", "epoch": 1, "loss": 4.0, "tokens": 800.0}
    events = [
        {"kind": "start", "epochs": 2, "steps": 25, "step": 0},
        *({**step, "time": 100.0 + n, "step": n} for n in (0, 1, 54)),
    ]
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    progress = EventReader(file).progress()
    assert (progress.done, progress.total, progress.seconds_left) == (55, 55, 0.0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            "trainer-out-of-memory",
        ),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("RuntimeError: Hidden-state generation circuit breaker tripped", "trainer-failed"),
    ],
)
def test_a_failed_trainer_says_why(text: str, code: str, tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text(f"Epoch 0   0%\r│ trainer.py:83 │\n{text}\nwarnings.warn('leaked')\n")
    error = trainer_error(log, "training")
    assert error.code == code
    assert str(log) in str(error)


def test_of_several_processes_the_error_of_one_is_named(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    error = "ValueError: no such model"
    log.write_text(f"[rank1]: {error}\ntorch.distributed.elastic.ChildFailedError: \n")
    assert error in trainer_error(log, "states").message
