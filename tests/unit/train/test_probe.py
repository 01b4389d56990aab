"""The rates of a training from a short one, without an engine."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from peagle.train import estimate as estimating
from peagle.train.data import TrainingData, read_training_data
from peagle.train.estimate import Rates, measure_data, measure_rates, training_hours
from peagle.train.recipe import Recipe, Setup, Training
from peagle.train.run import Step, TrainerFailed, TrainProgress, trainer_error

RECIPE = Recipe(epochs=3, sequence_length=256)
SETUP = Setup("/models/tiny", (2, 5, 7), 8, 256, 2, 8192, 2048)
START, ANSWER, STATES, STEP, PROMPT = 20.0, 0.5, 0.125, 2.0, 0.25
"""The seconds of an engine's start, of answers and hidden states of a conversation, of a step, of
a prompt."""
COMPILED, COMPILE = 2, 50.0
"""The first steps take so many seconds longer."""


class FakeRun:
    """A run whose steps take their time on a clock of its own. An epoch has 30 steps."""

    now = 0.0

    def __init__(self, training: Training, observe: Callable[[TrainProgress], object]) -> None:
        self._training, self._observe, self.work = training, observe, training.work
        self.seconds: dict[str, float] = {}

    def train(self) -> None:
        recipe, data = self._training.recipe, self._training.data
        assert recipe.epochs == 1
        self.seconds = {
            "untrained": self._step("untrained", 0, 0, 0.0),
            "states": self._step("states", len(data.train), len(data.train), STATES),
            "training": self._train(recipe.max_steps or 0),
            "measured": self._step("measured", len(data.held_out), len(data.held_out), PROMPT),
        }
        if not recipe.keep_answers:
            count = len(data.train)
            self.seconds["answers"] = self._step("answers", count, count, ANSWER)

    def _train(self, steps: int) -> float:
        FakeRun.now += START + COMPILED * COMPILE
        for done in range(1, steps + 1):
            FakeRun.now += STEP
            each = STEP if done > COMPILED else None
            self._observe(TrainProgress("training", done, 30, seconds_each=each))
        return START + COMPILED * COMPILE + steps * STEP

    def _step(self, step: Step, count: int, total: int, each: float) -> float:
        FakeRun.now += START
        counted = TrainProgress(step)
        for done in range(1, count + 1):
            FakeRun.now += each
            self._observe(counted.advance(done, total))
        return START + count * each


@pytest.fixture(name="data")
def read_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingData:
    monkeypatch.setattr(estimating, "Run", FakeRun)
    for clock in ("time", "monotonic"):
        monkeypatch.setattr(time, clock, lambda: FakeRun.now)
    file = tmp_path / "data.jsonl"
    rows = (f'{{"prompt": "question {n}", "completion": "{"answer " * 40}"}}' for n in range(2000))
    file.write_text("\n".join(rows))
    return read_training_data([str(file)], lambda: cast(Any, None))


def probe(data: TrainingData, folder: Path, keep_answers: bool = False) -> Rates:
    nothing = cast(Any, None)
    recipe = replace(RECIPE, keep_answers=keep_answers)
    training = Training(folder, folder, 5, recipe, SETUP, data, nothing, nothing, nothing)
    return measure_rates(training, lambda progress: None)


def test_the_time_of_the_training_is_predicted(data: TrainingData, tmp_path: Path) -> None:
    """Steps grow with the tokens; starts, and 200 prompts of each epoch, do not."""
    rates = probe(data, tmp_path)
    whole = measure_data(data.train, RECIPE)
    hours = training_hours(whole, rates, RECIPE)
    count, few = len(data.train), 4 * 32
    assert rates.basis == "measured"
    assert hours["regeneration"].likely * 3600 == pytest.approx(count * ANSWER, rel=0.01)
    epochs = RECIPE.epochs * 30 * STEP * count / few + STATES * count
    assert hours["epochs"].likely * 3600 == pytest.approx(epochs, rel=0.01)
    prompts = min(200, len(data.held_out)) * PROMPT
    starts = 4 * START + COMPILED * COMPILE + RECIPE.epochs * (START + prompts)
    assert hours["starts"].likely * 3600 == pytest.approx(starts, rel=0.05)
    assert not [*tmp_path.glob(".peagle-probe-*")]


def test_the_logs_of_a_probe_that_fails_remain(
    data: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs: list[Path] = []

    def fail(self: FakeRun) -> None:
        logs.append(self.work / "trainer.log")
        logs[0].write_text("RuntimeError: no memory\n")
        raise trainer_error(logs[0], "the head")

    monkeypatch.setattr(FakeRun, "train", fail)
    with pytest.raises(TrainerFailed) as failed:
        probe(data, tmp_path)
    assert str(logs[0]) in str(failed.value)
    assert logs[0].is_file()


def test_answers_that_are_kept_take_no_time(data: TrainingData, tmp_path: Path) -> None:
    rates = probe(data, tmp_path, keep_answers=True)
    whole = measure_data(data.train, replace(RECIPE, keep_answers=True))
    hours = training_hours(whole, rates, RECIPE)
    assert hours["regeneration"].likely == 0
    assert hours["starts"].likely > 0
