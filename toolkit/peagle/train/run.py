"""A training from data to a measured head, in steps that can be repeated.

    answers    the target answers the questions, so that the head learns its own text
    data       token ids of the answers
    untrained  a head with random weights in the engine that will serve it: every error of shapes,
               of the mask and of the KV cache costs a start, not a training
    training   the hidden states of the engine give the target's own probabilities; then the
               trainer, with those that the engine has saved before, or that it asks the engine for
               in each epoch if memory and disk are too small
    measured   the acceptance of each epoch's head on held-out prompts, in the engine
    lossless   the best head changes no greedy answer of the target

Each step has a file in the work folder with a digest of what it was made from, and its result. The
same command goes on after the last complete step, and within the training at its last checkpoint;
a step made from something else is made again.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Literal, get_args

from peagle.bench.acceptance import (
    AcceptanceRequest,
    AcceptanceResult,
    acceptance_bytes,
    measure_acceptance,
    read_acceptance,
)
from peagle.bench.lossless import check_lossless
from peagle.bench.targets import BenchTarget, open_engine
from peagle.bench.workloads import read_prompts
from peagle.engine.gpus import VISIBLE_DEVICES, visible_gpus
from peagle.engine.hidden_states import CHECK, EVENTS_VARIABLE, PLUGIN, TRAINER
from peagle.engine.local import running_engine
from peagle.engine.logs import crash_error, last_line
from peagle.engine.machine import find_trainer, this_machine
from peagle.engine.process import (
    HUB_VARIABLES,
    INHERITED_VARIABLES,
    AppendedLines,
    is_alive,
    run_program,
    sigterm_as_interrupt,
)
from peagle.engine.runner import LocalRunner
from peagle.engine.state import LocalEngine
from peagle.errors import EngineError, NotProved, PeagleError, Refused, UserError
from peagle.planning.plan import Plan
from peagle.store import locked, private_folder, read_json, write_file, write_json
from peagle.text import json_digest, json_object, sanitize
from peagle.train import recipe as recipes
from peagle.train.data import write_conversations, write_prompts
from peagle.train.recipe import Training
from peagle_serve import json_reader
from peagle_serve.contract import ENFORCE_EAGER, PREFIX, SERVED_NAME

Step = Literal["answers", "data", "untrained", "states", "training", "measured", "lossless"]


class TrainerFailed(EngineError, code="trainer-failed"):
    """The trainer ended with an error; what it saved is kept.
    Fix: read its log, which the error names, and repeat the command: it continues."""


@dataclass
class TrainProgress:
    """Where a step is. ``done`` of ``total`` are conversations, training steps or prompts;
    ``detail`` is the last line of a log. ``seconds`` are of the training so far, ``seconds_each``
    of a conversation, step or prompt: the first ones do not count, since programs start and compile
    before them."""

    step: Step
    done: int = 0
    total: int = 0
    detail: str = ""
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    seconds_each: float | None = None
    seconds: float = 0.0
    _first: tuple[float, int] | None = None

    @property
    def seconds_left(self) -> float | None:
        """The seconds that are left of this step."""
        return None if self.seconds_each is None else self.seconds_each * (self.total - self.done)

    def advance(self, done: int, total: int, now: float | None = None) -> TrainProgress:
        """Count what is done ``now``, by default at this moment."""
        if done > self.done:
            now = time.time() if now is None else now
            if self._first:
                begun, first = self._first
                self.seconds_each = (now - begun) / (done - first)
            elif self.done:
                self._first = now, done
        self.done, self.total = max(done, self.done), total
        return self


Observe = Callable[[TrainProgress], object]


@dataclass(frozen=True)
class Epoch:
    """The head of an epoch: its folder, its loss on held-out rows, and its acceptance."""

    number: int
    folder: Path
    acceptance: AcceptanceResult
    loss: float | None = None

    @property
    def length(self) -> float:
        """The mean acceptance length on the held-out prompts."""
        return self.acceptance.total.acceptance.length


@dataclass(frozen=True)
class Trained:
    """The heads of all epochs and the one with the longest acceptance, and the seconds of each
    step. ``lossless`` counts the answers and tokens of the best head that were compared with the
    target's, and those that differ."""

    epochs: tuple[Epoch, ...]
    best: Epoch
    seconds: Mapping[str, float]
    states: Mapping[str, Any] = field(default_factory=dict)
    lossless: Mapping[str, Any] = field(default_factory=dict)


_MARKER = "step.json"
_LEAST_SAME = 0.95
"""Of the tokens whose most likely successor the saved states have to give too."""

_LEAST_ANSWERED = 0.5
"""Of the questions, that a training has answers to."""

_MEMORY = Path("/dev/shm")  # nosec B108 # a folder there has the digest of the work folder
_COMPARED_PROMPTS, _COMPARED_TOKENS = 16, 64
"""Of the held-out prompts, and of each answer, what is compared with the target's answers."""

_UNCOMPILED = {ENFORCE_EAGER: "true"}
"""Starts sooner, with the same acceptance: on a CPU, and to compare answers, for which both engines
must round alike. A GPU decodes more slowly without CUDA graphs."""

_ROW_BYTES = 16
"""Of the prepared data, per token: its id, and whether it is trained on."""

_ROOM = 2
"""Times the hidden states that a disk must have free, so that they are saved there."""

_SAVE_SECONDS = 100.0
"""How long an interrupted trainer may take to save; SageMaker ends a job 120 s after SIGTERM."""


class Run:
    """The steps of one training, in its work folder."""

    def __init__(self, training: Training, observe: Observe = lambda progress: None) -> None:
        self.training, self._observe = training, observe
        self.recipe, self.setup = training.recipe, training.setup
        self.work, self._begun = training.work, time.monotonic()
        self._answers = self.work / "answers" / "answers.jsonl"
        self._data = self.work / "data" / "prepared"
        self._checkpoints = self.work / "training" / "checkpoints"
        self._prompts = self.work / "prompts.jsonl"
        self._states = _MEMORY if _MEMORY.is_dir() else self.work
        self._states /= f"peagle-states-{json_digest(str(self.work))[:12]}"
        self._python = find_trainer(training.setup.gpu)
        self._earlier = sum(self.seconds.values())

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each step that was made, also in calls before this."""
        seconds = dict[str, float]()
        for name in get_args(Step):
            for file in (self.work / name).rglob(_MARKER):
                seconds[name] = seconds.get(name, 0.0) + _read_marker(file).get("seconds", 0.0)
        return seconds

    def _report(self, progress: TrainProgress) -> None:
        progress.seconds = self._earlier + time.monotonic() - self._begun
        self._observe(progress)

    def train(self) -> Trained:
        """Run all steps that are not done. Raises UserError where another process does, Refused for
        a head that the engine cannot serve, EngineError and TrainerFailed."""
        private_folder(self.work)
        try:
            with locked(self.work / "lock", wait=False), sigterm_as_interrupt():
                try:
                    return self._train()
                finally:
                    shutil.rmtree(self._states, ignore_errors=True)
        except BlockingIOError:
            message = f"another process trains the head in {self.training.output}"
            fix = "wait until it ends, or choose another folder"
            raise UserError(message, fix, code="already-running") from None
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise TrainerFailed(f"{self.work}: the disk is full", _DISK_FIX, "disk-full") from error

    def _train(self) -> Trained:
        recipe, data = self.recipe, self.training.data
        answers = [data.sha256, self.setup.target, recipe.answer_tokens, recipe.keep_answers]
        # More epochs continue a training, and the anchors depend on the GPU's memory.
        fixed = {**recipe.settings, "max-anchors": ""}
        source = [*answers, asdict(replace(recipe, epochs=1, settings=fixed))]
        self._step("untrained", source, self._serve_untrained)
        if not recipe.keep_answers:
            self._step("answers", answers, self._regenerate)
        self._step("data", source, self._prepare)
        fitted = self._step("training", source, self._fit, recipe.epochs)
        write_prompts(data.held_out, self._prompts)
        error: PeagleError = TrainerFailed("no head was saved", f"read {self._log('training')}")
        epochs = []
        for folder in _read_checkpoints(self._checkpoints):
            try:
                epochs.append(self._measure(folder, source, fitted.get("losses", {})))
            except NotProved as refused:  # none of its drafts is accepted, which others may repair
                error = refused
        if not epochs:
            raise error
        best = max(epochs, key=lambda epoch: epoch.length)
        source = [*source, best.acceptance.k, best.number]
        lossless = self._step("lossless", source, partial(self._compare_answers, best.folder))
        return Trained(tuple(epochs), best, self.seconds, fitted.get("states", {}), lossless)

    def _step(
        self, name: Step, source: Any, make: Callable[[], dict[str, Any] | None], amount: int = 0,
        part: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """The result of a step or of a ``part`` of it, from its file if that is of the same
        ``source`` and ``amount``, else from ``make``. Another source empties the folder of the
        step; another amount, of epochs, goes on with what is there."""
        folder, digest = private_folder(self.work / name / part), json_digest(source)
        marker = _read_marker(folder / _MARKER)
        result: dict[str, Any] | None = marker.get("result")
        if result is not None and (marker["source"], marker["amount"]) == (digest, amount):
            return result
        if marker.get("source") != digest:
            shutil.rmtree(folder)
            private_folder(folder)
            marker = {"source": digest, "seconds": 0.0}
        marker["result"] = None
        write_json(folder / _MARKER, marker)
        begun = time.monotonic()
        self._report(TrainProgress(name))
        try:
            result = make() or {}
            marker |= {"result": result, "amount": amount}
        finally:
            marker["seconds"] += time.monotonic() - begun
            write_json(folder / _MARKER, marker)
        return result

    def _log(self, step: Step) -> Path:
        return self.work / step / "trainer.log"

    def _regenerate(self) -> None:
        conversations = self.training.data.train
        questions = self._answers.with_name("questions.jsonl")
        total = write_conversations(conversations, questions)
        has_turns = any(
            sum(m["role"] == "user" for m in each.messages) > 1 for each in conversations
        )
        lines, answered, counted = AppendedLines(self._answers), 0, TrainProgress("answers")

        def watch() -> TrainProgress:
            nonlocal answered
            # A conversation of several turns is written at once, a row for each answer.
            answered += sum(b'_gen0", "primary_id"' in line for line in lines.read())
            return counted.advance(answered, total)

        with self._serving(self.training.plan, "answers", self._served_variables) as engine:
            url = engine.openai_base_url
            words = recipes.regenerate_arguments(
                self.recipe, self.setup, questions, self._answers, url, has_turns
            )
            self._run_program("answers", [str(TRAINER), *words], watch, engine)
        if watch().done < _LEAST_ANSWERED * total:
            fix = f"read {self._log('answers')}, and repeat the command: it asks the others"
            message = f"the target answered {answered:,} of {total:,} questions"
            raise TrainerFailed(message, fix, "few-answers")

    def _prepare(self) -> None:
        with ExitStack() as serving:
            engine, root, file = None, None, self._answers
            if self.recipe.keep_answers:
                file = self._data.with_name("kept.jsonl")
                write_conversations(self.training.data.train, file, keep_answers=True)
                server = self._serving(self.training.plan, "data", self._served_variables)
                engine = serving.enter_context(server)
                root = engine.openai_base_url.removesuffix("/v1")
            words = recipes.prepare_arguments(self.recipe, self.setup, file, self._data, root)
            self._run_program("data", [str(TRAINER), *words], engine=engine)

    def _serve_untrained(self) -> None:
        head = self.work / "untrained" / "head"
        words = [str(TRAINER), "train", *recipes.train_arguments(self.recipe, self.setup)]
        self._run_program("untrained", [*words, "--dry-run", "--save-path", str(head)])
        try:
            with self._serving(self.training.plan_with(head), "untrained"):
                pass
        except NotProved as error:
            if error.code != NotProved.code:  # as expected, its drafts are made and not accepted
                raise

    def _compare(self, engine: LocalEngine) -> dict[str, Any]:
        output = private_folder(self.work / "states") / "states.json"
        words = [str(CHECK), self.setup.target, str(self.work / "untrained" / "head")]
        words += [engine.openai_base_url, str(self._data), str(output)]
        self._run_program("states", words, engine=engine)
        compared: dict[str, Any] = read_json(output)
        if compared["same"] < _LEAST_SAME:
            share = f"{compared['same']:.0%} of {compared['tokens']:,} tokens"
            message = f"the hidden states are not the target's: the next token is right for {share}"
            fix = "use another version of vLLM; the trainer may know another norm or output matrix"
            raise Refused(message, fix, "states-differ")
        return compared

    def _choose_states(self) -> bool:
        """Choose the folder of the hidden states, and say whether it has room for all of them."""
        needed = _size(self._data, "*.arrow") // _ROW_BYTES * self.setup.states_bytes
        head = _size(self.work / "untrained" / "head", "*.safetensors")
        checkpoints = (self.recipe.epochs + 1) * recipes.CHECKPOINT_HEADS * head
        for place, others in ((_MEMORY, 0), (Path(gettempdir()), checkpoints)):
            if place.is_dir() and shutil.disk_usage(place).free > _ROOM * needed + others:
                self._states = place / self._states.name
                return True
        return False

    def _save_states(self, engine: LocalEngine) -> None:
        rows = read_json(self._data / "dataset_info.json")["splits"]["train"]["num_examples"]
        counted = TrainProgress("states")

        def watch() -> TrainProgress:
            done = sum(name.startswith("hs_") for name in os.listdir(self._states))
            return counted.advance(done, rows)

        clients = 4 if self.setup.gpu else 1  # each needs 14 ms of CPU for a prompt
        words = [str(TRAINER), "generate-offline-data", "--model", self.setup.target]
        words += ["--preprocessed-data", str(self._data), "--output", str(self._states)]
        words += ["--concurrency", str(self.setup.requests // clients)]
        words += ["--endpoint", engine.openai_base_url]
        self._run_program("states", _processes(clients, words), watch, engine)

    def _fit(self) -> dict[str, Any]:
        """Train, with hidden states that are saved before, or else with those of the engine."""
        keeps = self._choose_states()
        with ExitStack() as serving:
            engine = serving.enter_context(self._states_engine())
            states = self._compare(engine)
            if keeps:
                self._save_states(engine)
                serving.close()
            return {**self._run_trainer(None if keeps else engine), "states": states}

    def _run_trainer(self, engine: LocalEngine | None) -> dict[str, Any]:
        _read_checkpoints(self._checkpoints)
        events = self.work / "training" / "events.jsonl"
        variables = {EVENTS_VARIABLE: str(events)}
        words = [str(TRAINER), "train", *recipes.train_arguments(self.recipe, self.setup)]
        words += ["--vllm-endpoint", engine.openai_base_url] if engine else ["--on-missing", "skip"]
        words += ["--data-path", str(self._data)]
        words += ["--hidden-states-path", str(self._states), "--save-path", str(self._checkpoints)]
        if self.setup.gpu:  # those that the engine leaves, else its first one, which both share
            if "num-workers" not in self.recipe.settings:
                words += ["--num-workers", str(max(1, min(12, this_machine().cores - 2)))]
            taken = engine.gpus if engine else ()
            free = [gpu.uuid for gpu in visible_gpus().gpus if gpu.uuid not in taken]
            gpus = free or list(taken[:1])
            variables[VISIBLE_DEVICES] = ",".join(gpus)
            words = _processes(len(gpus), words)
        reader = EventReader(events)
        self._run_program("training", words, reader.progress, engine, variables)
        reader.progress()
        return {"losses": reader.losses}

    def _measure(self, folder: Path, source: list[Any], losses: Mapping[str, float]) -> Epoch:
        file, number = self.work / "measured" / folder.name / "acceptance.json", int(folder.name)

        def measure() -> None:
            request = AcceptanceRequest(min(self.recipe.answer_tokens, 256), concurrency=16)
            settings = {} if self.setup.gpu else _UNCOMPILED
            counted = TrainProgress("measured", epoch=number)
            with self._serving(self.training.plan_with(folder), "measured", settings) as engine:
                result = measure_acceptance(
                    open_engine(engine, self.training.catalog),
                    read_prompts(self._prompts),
                    request,
                    progress=lambda _, *done: self._report(counted.advance(*done)),
                )
            write_file(file, acceptance_bytes(result))

        self._step("measured", [*source, self.training.k], measure, part=folder.name)
        return Epoch(number, folder, read_acceptance(file), losses.get(folder.name))

    def _compare_answers(self, head: Path) -> dict[str, Any]:
        """Compare greedy answers with those of the target alone, in engines that round alike."""
        held_out = read_prompts(self._prompts)
        prompts = replace(held_out, prompts=held_out.prompts[:_COMPARED_PROMPTS])

        @contextmanager
        def replace_engine(plan: Plan) -> Iterator[BenchTarget]:
            serving.close()  # the one before, so that each fits on a GPU
            engine = serving.enter_context(self._serving(plan, "lossless", _UNCOMPILED))
            yield open_engine(engine, self.training.catalog)

        with ExitStack() as serving, replace_engine(self.training.plan_with(head)) as target:
            compared = check_lossless(
                target, replace_engine(self.training.plan), prompts, _COMPARED_TOKENS,
                lambda name, done, total: self._report(
                    TrainProgress("lossless", done, total, name)
                ),
            )  # fmt: skip
        return {"prompts": compared.prompts, "tokens": compared.tokens, "passed": compared.passed,
                "differences": len(compared.differences),
                "unexplained": len(compared.unexplained)}  # fmt: skip

    @property
    def _served_variables(self) -> dict[str, str]:
        """The variables of an engine that the trainer sends requests to, by its own name of it."""
        names = json.dumps(list(dict.fromkeys([self.setup.target, self.training.plan.target.id])))
        return {SERVED_NAME: names, f"{PREFIX}MAX_NUM_SEQS": str(self.setup.requests)}

    def _states_engine(self) -> AbstractContextManager[LocalEngine]:
        shutil.rmtree(self._states, ignore_errors=True)
        self._states.mkdir(parents=True)
        variables = recipes.states_variables(self.setup, self._states, self.training.states_share)
        return self._serving(self.training.plan, "states", self._served_variables | variables)

    def _serving(
        self, plan: Plan, step: Step, settings: Mapping[str, str] | None = None
    ) -> AbstractContextManager[LocalEngine]:
        """The engine of the plan, with a name of this training and these variables, while the block
        runs."""
        name, gpu = f"train-{json_digest(str(self.work))[:8]}-{step}", self.setup.gpu
        plugin = {} if gpu else {"PYTHONPATH": str(PLUGIN)}
        return running_engine(
            plan.model_copy(update={"name": name}),
            lambda state, line: self._report(TrainProgress(step, detail=line)),
            LocalRunner(gpus=gpu, variables={**plugin, **(settings or {})}),
        )

    def _run_program(
        self,
        step: Step,
        words: Sequence[str],
        watch: Callable[[], TrainProgress] | None = None,
        engine: LocalEngine | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Run a program of the trainer's Python until it ends, which an interrupt makes it do after
        it has saved. Raises EngineError when the engine it needs has ended, TrainerFailed."""
        log = self._log(step)
        before = log.stat().st_size if log.exists() else 0
        environment = {
            **{name: os.environ[name] for name in _INHERITED if name in os.environ},
            # Threads that wait do not keep the cores from the engine.
            "COLUMNS": "200", "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE",
            **(variables or {}),
        }  # fmt: skip

        def report() -> None:
            if engine and not is_alive(engine.process):
                raise crash_error(Path(engine.process.log))
            progress = watch() if watch else TrainProgress(step)
            progress.detail = last_line(log)
            self._report(progress)

        argv = [str(self._python), *words]
        if run_program(argv, environment, log, report, _SAVE_SECONDS):
            raise trainer_error(log, step, before)


_INHERITED = (*INHERITED_VARIABLES, *HUB_VARIABLES, "VIRTUAL_ENV", VISIBLE_DEVICES)


def _processes(count: int, words: list[str]) -> list[str]:
    """The words that run ``words`` in ``count`` processes, which share the work."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return [*launcher, *words] if count > 1 else words


def _read_marker(path: Path) -> dict[str, Any]:
    return json_object(path.read_bytes() if path.exists() else None)


def _size(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(pattern))


def _read_checkpoints(folder: Path) -> list[Path]:
    """The folders of the epochs that were saved. One that was not saved to its end is removed, or
    the trainer would begin with it."""
    folders = [each for each in folder.glob("*") if each.name.isdecimal()]
    complete = [each for each in folders if (each / "training_state.json").is_file()]  # the last
    for each in {*folders} - {*complete}:
        shutil.rmtree(each)
    return sorted(complete, key=lambda each: int(each.name))


class EventReader:
    """What the trainer's events say, as far as they are written."""

    def __init__(self, file: Path) -> None:
        self._lines, self._now = AppendedLines(file), TrainProgress("training")
        self.losses: dict[str, float] = {}

    def progress(self) -> TrainProgress:
        """Read what is new."""
        for line in self._lines.read():
            event = json_reader.read(line, "an event")
            if event["kind"] == "start":
                epochs = event["epochs"]
                total = epochs * event["steps"]
                self._now = TrainProgress("training", event["step"], total, epochs=epochs)
            elif event["kind"] == "step":
                done = event["step"] + 1
                self._now.epoch, self._now.loss = event["epoch"], event["loss"]
                # Each epoch packs texts in another order.
                self._now.advance(done, max(done, self._now.total), event["time"])
            elif event.get("loss") is not None:
                self.losses[str(event["epoch"])] = event["loss"]
        return self._now


_DISK_FIX = "free some space, and repeat the command: it continues"
_CAUSES = (
    (("OutOfMemoryError", "out of memory"), "trainer-out-of-memory",
     "the GPU's memory is too small for a step",
     "repeat it with --set max-anchors=512, or with a shorter --sequence-length"),
    (("No space left on device", "quota exceeded"), "disk-full", "the disk is full", _DISK_FIX),
)  # fmt: skip


def trainer_error(log: Path, step: str, before: int = 0) -> TrainerFailed:
    """The error of a trainer that ended, from its log after so many bytes."""
    lines = log.read_bytes()[before:].decode(errors="replace").splitlines()[-400:]
    text = "\n".join(lines)
    for words, code, message, fix in _CAUSES:
        if any(word in text for word in words):
            return TrainerFailed(f"{message} (log: {log})", fix, code)
    errors = [re.sub(r"^\[rank\d+\]: ", "", line) for line in lines if "Error: " in line]
    errors = [each for each in errors if each[:1] != " " and "ChildFailedError" not in each]
    reason = sanitize((errors or [last_line(log) or "no output"])[-1], 200)
    return TrainerFailed(f"the trainer ended while it made {step}: {reason}", f"read {log}")
