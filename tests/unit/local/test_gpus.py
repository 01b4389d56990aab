"""GPUs of this machine: what they are, plans for them, and engines on them."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from peagle.bench.targets import open_engine
from peagle.catalog import load_catalog
from peagle.catalog.tables import HERE
from peagle.deploy.preflight import preflight
from peagle.engine import gpus as module
from peagle.engine import local, machine
from peagle.engine import state as records
from peagle.engine.dummy import PLUGIN, dummy_variables, with_dummy_weights
from peagle.engine.gpus import catalogue_name, choose_gpus, find_gpus, this_machine_in, visible_gpus
from peagle.engine.local import StepProgress
from peagle.engine.machine import ENGINE_VARIABLE, Engine
from peagle.engine.process import EngineProcess
from peagle.engine.state import LocalEngine
from peagle.engine_log import capture_size_in
from peagle.errors import NotFound, NotProved, OptionsConflict, OutOfRange, Refused
from peagle.planning import Options, Plan, make_plan
from peagle.render import render
from peagle.train.data import TrainingData
from peagle.train.recipe import Recipe, make_training
from tests.support import bundled_catalog, in_process, raises_code
from tests.unit.aws.cloud import Cloud, FakeAws
from tests.unit.local.nvml import A10G, A100, H100, H200, L4, RTX_4090, T4, Card, Nvml

Cards = Callable[..., Nvml]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    """A machine with these GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*cards: Card, **settings: Any) -> Nvml:
        nvml = Nvml(list(cards), **settings)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return install


def test_clocks_and_widths_give_the_rates_of_the_data_sheets(cards: Cards) -> None:
    sheets = {(row.gpu, row.memory_gib): row for row in load_catalog().speed_model.gpus}
    cards(T4, A10G, A100, L4, H100, H200)
    names = ("T4", None), ("A10G", None), ("A100", 40), ("L4", None), ("H100", None), ("H200", None)
    reported = find_gpus()
    assert reported is not None
    for gpu, key in zip(reported.gpus, names, strict=True):
        assert gpu.memory_gb_per_second == pytest.approx(sheets[key].memory_gb_per_second, rel=0.03)
        assert gpu.tflops == pytest.approx(sheets[key].tflops, rel=0.09)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 SE"),
        ("NVIDIA H100 PCIe", None),  # slower than the H100 of the catalogue
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_gpu_has_the_name_of_the_catalogue_if_it_is_that_one(
    cards: Cards, reported: str, name: str | None
) -> None:
    names = {"H100", "H200", "L4", "L40S", "T4", "A100", "A10G", "RTX PRO 6000 SE"}
    cards(H100._replace(name=reported))
    assert catalogue_name(visible_gpus().gpus[0], names) == name


def test_a_plan_for_this_machine_has_its_gpus_and_evidence_and_no_price(cards: Cards) -> None:
    cards(H200)
    plan = in_process("plan", "gpt-oss-20b", "--here", "--json").document
    assert (plan["instance_type"], plan["instance_count"]) == (HERE, 1)
    assert plan["price_per_hour_usd"] is None
    assert plan["speed"]["tokens_per_second"] > plan["without_speculation"]["tokens_per_second"]
    codes = {finding["code"] for finding in plan["findings"]}
    assert not codes & {"price-unknown", "ami-unverified", "instance-region-unknown"}
    cards(L4)  # whose KV cache holds a third of this load: requests wait, on one machine
    words = "plan", "gpt-oss-20b", "--here", "--concurrency", "64"
    plan = in_process(*words, "--json").document
    assert (plan["instance_count"], plan["alternatives"][1:]) == (1, [])
    small = next(f for f in plan["findings"] if f["code"] == "cache-below-concurrency")
    assert "--instance" not in small["fix"]
    for several in ("--instance-count", "2"), ("--max-instances", "2"):
        assert in_process(*words, *several).code == OptionsConflict.exit_code


@pytest.mark.parametrize("cached", ["", "--cached-prompt-tokens 22"])
def test_a_plan_takes_k_from_a_sweep_on_this_gpu(cards: Cards, tmp_path: Path, cached: str) -> None:
    # Prompts of a file: the cache has a block of the chat template, and a drafter loses it.
    cards(H200)
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    shutil.copy(Path(__file__).with_name("sweep-tiny-h200.json"), evidence)
    sizes = f"--concurrency 8 --prompt-tokens 82 --output-tokens 127 {cached}"
    words = "plan", "peagle/tiny+p-eagle", "--here", *sizes.split(), "--json"
    with bundled_catalog():
        plan = in_process("--catalog", str(tmp_path), *words).document
    assert (plan["speculation"]["k"], plan["speed"]["basis"]) == (7, "measured")
    assert cached or round(plan["speed"]["tokens_per_second"]) == 3435


def test_model_runner_v2_drafts_random_tokens_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    plugin = importlib.import_module("peagle_dummy_weights")
    drafts = SimpleNamespace(random_=lambda low, high: (low, high))
    runner = SimpleNamespace(
        init_speculator=lambda config, device: SimpleNamespace(propose=lambda batch: drafts)
    )
    for depth, name in enumerate(names := ["vllm", "v1", "worker", "gpu"]):
        monkeypatch.setitem(sys.modules, ".".join(names[: depth + 1]), ModuleType(name))
    monkeypatch.setattr(sys.modules["vllm.v1.worker.gpu"], "spec_decode", runner, raising=False)
    plugin.draft_random_tokens_on_v2()
    for method, proposed in (("eagle3", (0, 99)), ("ngram", drafts)):
        config = SimpleNamespace(
            model_config=SimpleNamespace(get_vocab_size=lambda: 99),
            speculative_config=SimpleNamespace(method=method),
        )
        assert runner.init_speculator(config, "cuda").propose("batch") == proposed


def test_an_engine_of_this_machine_needs_no_image_of_aws(cards: Cards) -> None:
    cards(H200)
    options = "gpt-oss-20b", "--vllm", "0.33.0", "--set", "device-memory-utilization=0.8", "--json"
    plan = in_process("plan", *options, "--here").document
    assert plan["runtime"]["vllm"] == "0.33.0"
    assert in_process("plan", *options[:-1], "--here", "--image", "my/vllm:0.33.0").code == 0
    assert in_process("plan", *options).code != 0


def test_a_plan_for_this_machine_is_neither_deployed_nor_rendered(
    cards: Cards, tmp_path: Path
) -> None:
    cards(H200)
    catalog = this_machine_in(load_catalog())
    plan = make_plan(Options(pair="tiny", instance_type=HERE), catalog)
    with raises_code("planned-for-here", Refused):
        render("terraform", plan, catalog)
    with raises_code("planned-for-here", Refused):
        preflight(FakeAws(Cloud()), plan, catalog.instances)
    shown = in_process("plan", "tiny", "--here").out
    assert "Next: peagle local up tiny --here" in shown
    assert "ml." not in shown


@pytest.mark.parametrize(
    ("card", "words", "settings", "code"),
    [
        (RTX_4090, ("gpt-oss-120b",), {}, "instance-too-small"),
        (H200, ("gpt-oss-20b",), {"free": [0.5]}, "gpu-busy"),
        (H200, ("gpt-oss-20b",), {"cuda": 12080}, "driver-too-old"),
        (H200, ("gpt-oss-20b", "--copies", "2"), {}, "too-many-copies"),
    ],
)
def test_what_cannot_start_is_refused_in_one_line_that_names_no_type_of_aws(
    cards: Cards, engine_home: Path, stand_in: Engine, monkeypatch: pytest.MonkeyPatch,
    card: Card, words: tuple[str, ...], settings: dict[str, Any], code: str,
) -> None:  # fmt: skip
    nvml = cards(card, **settings)
    monkeypatch.setenv(ENGINE_VARIABLE, str(stand_in.python))
    monkeypatch.setattr(module, "run_python", lambda python, code: "13.0")
    done = in_process("local", "up", *words, "--json")
    expected = OutOfRange if code == "too-many-copies" else Refused
    assert (done.code, done.refusal["code"], nvml.reads) == (expected.exit_code, code, 1)
    assert "ml." not in done.refusal["message"] + done.refusal["fix"]
    assert len(in_process("local", "up", *words).err.splitlines()) == 1, "no notes of the plan"


def test_a_verdict_for_this_machine_has_no_price(cards: Cards) -> None:
    cards(H200)
    verdict = in_process("verdict", "gpt-oss-20b", "--here", "--json").document
    assert (verdict["instance_type"], verdict["usd_per_hour"]) == (HERE, None)
    assert not any("price" in change for change in verdict["changes"])


def test_an_unknown_gpu_is_planned_from_what_nvml_reports_with_a_wide_range(cards: Cards) -> None:
    cards(RTX_4090)
    catalog = this_machine_in(load_catalog())
    row = catalog.speed_model.gpus[-1]
    assert (row.gpu, row.memory_gb_per_second) == ("GeForce RTX 4090", 1008.1)
    assert row.fp8_tflops == pytest.approx(2 * row.tflops)
    speed = make_plan(Options(pair="gpt-oss-20b", instance_type=HERE), catalog).speed
    assert speed.low is not None
    assert speed.high is not None
    assert speed.high / speed.low > 2
    cards(RTX_4090, silent=True)
    catalog = this_machine_in(load_catalog())
    speed = make_plan(Options(pair="gpt-oss-20b", instance_type=HERE), catalog).speed
    assert (speed.basis, speed.tokens_per_second) == ("unknown", None)


def test_a_machine_without_a_gpu_and_one_with_several_kinds_are_refused(cards: Cards) -> None:
    cards()
    assert find_gpus() is None
    with raises_code("no-gpu", Refused):
        this_machine_in(load_catalog())
    cards(H100, H200)
    with raises_code("mixed-gpus", Refused):
        this_machine_in(load_catalog())


def test_cuda_visible_devices_limits_what_is_planned(
    cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(H100, H200, H200)
    for visible in ("1,2", "GPU-1, GPU-2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [gpu.index for gpu in visible_gpus().gpus] == [1, 2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,7")
    with raises_code("out-of-range", OutOfRange):
        visible_gpus()


@pytest.mark.parametrize(
    ("free", "taken", "count", "chosen"),
    [((), (), 1, [0]), ((), ("GPU-0",), 1, [1]), ((0.5,), (), 1, [1]), ((), (), 2, [0, 1]),
     ((), ("GPU-0", "GPU-1"), 1, "gpu-busy"), ((0.5, 0.5), (), 1, "gpu-busy"),
     ((), (), 3, "gpu-busy"), ((0.89,), ("GPU-1",), 1, "gpu-busy"),
     ((0.9,), ("GPU-1",), 1, [0])],
)  # fmt: skip
def test_an_engine_gets_gpus_that_are_free(
    cards: Cards, free: tuple[float, ...], taken: tuple[str, ...], count: int, chosen: Any
) -> None:
    cards(H200, H200, free=list(free))
    if isinstance(chosen, str):
        with raises_code(chosen, Refused):
            choose_gpus(visible_gpus(), count, 0.9, dict.fromkeys(taken, "other"))
    else:
        gpus = choose_gpus(visible_gpus(), count, 0.9, dict.fromkeys(taken, "other"))
        assert [gpu.index for gpu in gpus] == chosen


@pytest.mark.parametrize(
    ("built_for", "driver", "code"),
    [("13.0", 13000, None), ("13.1", 13000, None), ("12.8", 13000, None),
     ("13.0", 12080, "driver-too-old"), ("", 13000, "engine-without-cuda")],
)  # fmt: skip
def test_a_driver_that_is_too_old_is_refused_before_a_start(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, built_for: str, driver: int, code: str | None
) -> None:
    cards(H200, cuda=driver)
    monkeypatch.setattr(module, "run_python", lambda python, code: built_for)
    engine = Engine(Path("python"), "0.28.0")
    if code is None:
        module.check_driver(engine, visible_gpus())
    else:
        with raises_code(code, Refused):
            module.check_driver(engine, visible_gpus())


def test_the_doctor_of_a_gpu_host_asks_for_what_local_up_needs(
    cards: Cards, own_home: Path, stand_in: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(H200)
    monkeypatch.setattr(machine, "find_spec", lambda name: None)  # no moto: no sandbox
    monkeypatch.setattr(module, "run_python", lambda python, code: "13.0")
    monkeypatch.setenv(ENGINE_VARIABLE, str(stand_in.python))
    assert in_process("doctor").code == 0
    monkeypatch.setattr(module, "run_python", lambda python, code: "")  # torch without CUDA
    assert in_process("doctor").code == Refused.exit_code


@pytest.mark.thorough
def test_engines_and_copies_run_on_gpus_of_their_own(
    cards: Cards, engine_home: Path, stand_in: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = cards(H200, H200, H200)
    monkeypatch.setenv(ENGINE_VARIABLE, str(stand_in.python))
    monkeypatch.setattr(module, "run_python", lambda python, code: "13.0")
    up = ("local", "up", "tiny", "--name")
    assert in_process(*up, "e0", "--json").document["notes"] == []
    assert nvml.reads == 1
    done = in_process(*up, "e", "--copies", "2", "--json")
    assert done.code == 0, done.err
    engines = done.document["engines"]
    assert [engine["name"] for engine in engines] == ["e-1", "e-2"]
    assert len({engine["port"] for engine in engines}) == 2
    for number, name in enumerate(("e0", "e-1", "e-2")):
        received = json.loads((records.locate_folder(name) / "given.json").read_text())
        assert received["environment"]["CUDA_VISIBLE_DEVICES"] == f"GPU-{number}"
    assert in_process(*up, "e0").code == 0  # it runs already, as the copies do
    again = in_process(*up, "e", "--copies", "2", "--json").document["engines"]
    assert [engine["pid"] for engine in again] == [engine["pid"] for engine in engines]
    assert in_process(*up, "e2").code == Refused.exit_code
    assert in_process("invoke", "e", "Hi", "--json").refusal["code"] == "several-engines"
    assert in_process("local", "down", "e", "--json").document["ended"] == ["e-1", "e-2"]
    assert records.local_engine_names() == ("e0",)
    assert in_process("local", "down", "e").code == NotFound.exit_code
    started, met = list[list[str]](), Barrier(2, timeout=20)

    def fail_together(plan: Plan, engine: LocalEngine, progress: StepProgress) -> LocalEngine:
        started.append([running.name for running in records.local_engines()])
        met.wait()  # until both proofs run
        raise NotProved("no draft was accepted")

    monkeypatch.setattr(local, "_prove", fail_together)
    assert in_process(*up, "e", "--copies", "2").code == NotProved.exit_code
    assert started == [["e-1", "e-2", "e0"]] * 2
    assert [running.name for running in records.local_engines()] == ["e0"]
    assert in_process("local", "down", "e", "--json").document["removed"] == ["e-1", "e-2"]


def test_a_measured_engine_has_its_gpus_their_driver_and_its_cuda_graphs(
    cards: Cards, tmp_path: Path
) -> None:
    cards(L4, H100, H100)
    log = tmp_path / "engine.log"
    log.write_text("INFO config: compilation_config={'max_cudagraph_capture_size': 512, 'mode': 3}")
    process = EngineProcess(1, 0, 8123, str(log))
    engine = LocalEngine("e", "a+b", "a", "0.28.0", {}, (), process, 1.0, gpus=("GPU-1", "GPU-2"))
    target = open_engine(engine, load_catalog())
    facts = target.facts
    assert target.max_cudagraph_capture_size == 512
    assert (facts.gpu, facts.gpu_count, facts.tensor_parallel_size) == ("H100", 2, 2)
    assert (facts.driver, facts.cuda) == ("580.159.04", "13.0")
    assert open_engine(replace(engine, gpus=()), load_catalog()).facts.gpu is None


@pytest.mark.parametrize(("log", "size"), [
    ("'max_cudagraph_capture_size': 256, ...\n'max_cudagraph_capture_size': 512}", 512),
    ("'max_cudagraph_capture_size': 0,", 0),  # it runs eagerly
    ("'max_cudagraph_capture_size': None,", None), ("", None), (None, None),
])  # fmt: skip
def test_the_log_of_the_last_start_says_the_largest_graph(
    log: str | None, size: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "engine.log"
    if log is not None:
        file.write_text(log)
    assert capture_size_in(file) == size


def test_dummy_weights_have_the_shapes_and_a_tokenizer_of_words(own_home: Path) -> None:
    catalog = load_catalog()
    plan = make_plan(Options(pair="tiny", k=3), catalog)
    dummy = with_dummy_weights(plan, catalog, ["time", "person", "time"])
    assert dummy.environment["SM_VLLM_LOAD_FORMAT"] == "dummy"
    assert "SM_VLLM_REVISION" not in dummy.environment
    config = json.loads(dummy.environment["SM_VLLM_SPECULATIVE_CONFIG"])
    assert (config["model"], config["num_speculative_tokens"]) == ("/opt/ml/model/drafter", 3)
    target = Path(dummy.target.weights.location)
    assert (target / "config.json").is_file()
    vocabulary = json.loads((target / "tokenizer.json").read_text())["model"]["vocab"]
    assert [*vocabulary][:4] == ["<unk>", "<eos>", "time", "person"]
    assert len(vocabulary) == json.loads((target / "config.json").read_text())["vocab_size"]
    variables = dummy_variables(dummy, catalog)
    assert (Path(variables["PYTHONPATH"]) / "peagle_dummy_weights.py").is_file()
    assert variables["PEAGLE_DUMMY_OWN_TENSORS"] == "lm_head"
    unknown = make_plan(Options(pair="qwen3-coder-30b"), catalog)
    with raises_code("not-found", NotFound):
        with_dummy_weights(unknown, catalog, ["time"])


def test_a_training_is_planned_for_the_visible_gpus(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cards(H200, H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    machine = find_gpus()
    data = cast(TrainingData, None)  # is not read before the training begins
    catalog = this_machine_in(load_catalog(), machine)
    training = make_training("tiny", tmp_path / "head", 5, Recipe(), data, catalog, None, machine)
    assert training.setup.gpu
    assert training.states_share  # the engine and the trainer share the one GPU
