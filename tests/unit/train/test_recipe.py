"""What a head is trained with: explicit settings, layers, and the token of masked slots."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.schema import Target
from peagle.checkpoints.models import Checkpoint, Tokenizer
from peagle.errors import OptionsConflict
from peagle.train.recipe import (
    CPU_RECIPE,
    Recipe,
    Setup,
    anchors_within,
    choose_layers,
    choose_mask_token,
    parse_settings,
    prepare_arguments,
    published_head,
    regenerate_arguments,
    states_variables,
    train_arguments,
)
from tests.support import raises_code

CATALOG = load_catalog()
QUESTIONS, ANSWERS, DATA = map(Path, ("/w/questions", "/w/answers", "/w/data"))
SETUP = Setup("/models/tiny", (2, 5, 7), 8, 256, 2, 8192, 2048, gpu=True)


def options(argv: list[str]) -> dict[str, str]:
    """The options of an argv, each with its values."""
    read: dict[str, list[str]] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name = word[2:]
            read[name] = []
        elif name:
            read[name].append(word)
    return {name: " ".join(values) for name, values in read.items()}


def test_the_settings_of_p_eagle_are_explicit() -> None:
    passed = options(train_arguments(Recipe(), SETUP))
    assert passed | {
        "speculator-type": "peagle", "num-layers": "4", "draft-arch": "llama",
        "full-attention-indices": "0 1 2 3", "max-anchors": "8192", "num-depths": "8",
        "mask-token-id": "2", "target-layer-ids": "2 5 7", "no-norm-before-residual": "",
        "down-sample-ratio": "0.8", "optimizer": "muon", "lr": "1e-3",
    } == passed  # fmt: skip
    assert not {"draft-attn-impl", "from-pretrained", "save-best"} & passed.keys()


def test_the_folder_of_the_target_is_one_word() -> None:
    setup = replace(SETUP, target="/data/my models/true")
    arguments = train_arguments(CPU_RECIPE, setup)
    assert arguments[arguments.index("--verifier-name-or-path") + 1] == setup.target


def test_a_cpu_multiplies_in_32_bits_and_without_triton() -> None:
    cpu = Setup("/models/tiny", (2, 5, 7), 8, 256, 2, 256, 2048)
    passed = options(train_arguments(CPU_RECIPE, cpu))
    assert passed["hidden-states-dtype"] == "float32"
    assert (passed["draft-attn-impl"], passed["loss-implementation"]) == ("sdpa", "eager")
    assert (passed["optimizer"], passed["lr"]) == ("adamw", "3e-3")
    assert passed["total-seq-len"] == "256"


def test_a_gpu_logs_few_steps_of_a_training_and_enough_of_a_probe() -> None:
    cpu = replace(SETUP, gpu=False)
    recipes = (Recipe(), SETUP), (Recipe(max_steps=30), SETUP), (Recipe(max_steps=30), cpu)
    logged = [options(train_arguments(*each))["log-freq"] for each in recipes]
    assert logged == ["10", "3", "1"]


def test_a_setting_of_the_user_replaces_the_toolkits() -> None:
    settings = parse_settings(["lr=6e-4", "optimizer=adamw", "--gradient_checkpointing=true"])
    passed = options(train_arguments(Recipe(settings=settings), SETUP))
    assert (passed["optimizer"], passed["lr"]) == ("adamw", "6e-4")
    assert passed["gradient-checkpointing"] == ""


@pytest.mark.parametrize(
    "text", ["num-depths=5", "save_path=/tmp", "save-best=true", "checkpoint-freq=2"]
)
def test_what_the_toolkit_has_to_choose_is_no_setting(text: str) -> None:
    with pytest.raises(OptionsConflict):
        parse_settings([text])


def test_each_step_has_its_argv() -> None:
    url = "http://127.0.0.1:20001/v1"
    recipe = Recipe(answer_tokens=64)
    turns = options(regenerate_arguments(recipe, SETUP, QUESTIONS, ANSWERS, url, True))
    assert turns["max-tokens"] == "1024"
    asked = regenerate_arguments(recipe, SETUP, QUESTIONS, ANSWERS, url, False)
    assert (options(asked)["max-tokens"], options(asked)["concurrency"]) == ("64", "256")
    assert asked[0] == "regenerate-responses"
    assert options(asked)["endpoint"] == f"{url}/chat/completions"
    assert options(asked)["resume"] == ""
    detection = json.loads(options(asked)["sampling-params"])["repetition_detection"]
    periods = range(detection["min_pattern_size"], detection["max_pattern_size"] + 1)
    assert all(any(n % period == 0 for n in periods) for period in range(1, 65))
    assert detection["min_count"] == 3
    prepared = options(prepare_arguments(Recipe(), SETUP, ANSWERS, DATA, None))
    assert (prepared["data"], prepared["seq-length"]) == ("/w/answers", "2047")
    root = url.removesuffix("/v1")
    kept = options(prepare_arguments(Recipe(), SETUP, QUESTIONS, DATA, root))
    assert (kept["data"], kept["render-endpoint"]) == ("/w/questions", root)


def test_the_engine_saves_the_layers_and_the_last_one() -> None:
    variables = states_variables(SETUP, Path("/dev/shm/states"), 0.3)
    speculation = json.loads(variables["SM_VLLM_SPECULATIVE_CONFIG"])
    config = speculation["draft_model_config"]["hf_config"]
    assert config == {"eagle_aux_hidden_state_layer_ids": [2, 5, 7, 8]}
    connector = json.loads(variables["SM_VLLM_KV_TRANSFER_CONFIG"])
    assert connector["kv_connector"] == "ExampleHiddenStatesConnector"
    assert variables["SM_VLLM_GPU_MEMORY_UTILIZATION"] == "0.30"


@pytest.mark.parametrize(("layers", "chosen"), [(36, (2, 18, 33)), (8, (2, 4, 5)), (7, (2, 3, 4))])
def test_layers_differ(layers: int, chosen: tuple[int, ...]) -> None:
    assert choose_layers(layers, {}) == chosen


def test_a_target_with_too_few_layers_is_refused() -> None:
    with raises_code("target-too-small"):
        choose_layers(6, {})


@pytest.mark.parametrize(("name", "layers"), [("peagle/tiny", (2, 5, 7)), ("gpt-oss-20b", None)])
def test_layers_are_those_of_the_published_head(name: str, layers: tuple[int, ...] | None) -> None:
    target = CATALOG.targets["openai/gpt-oss-20b" if layers is None else name]
    published = published_head(target)
    assert choose_layers(target.architecture.layers, published) == (layers or (2, 12, 21))


def tiny() -> Target:
    return CATALOG.targets["peagle/tiny"]


MODEL = Checkpoint(
    "tiny",
    {"eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 3},
    tokenizer=Tokenizer(vocab_size=1000, special_tokens={"2": "<|mask|>"}),
)


def test_the_mask_is_the_published_one_else_the_tokenizers_else_a_spare_one() -> None:
    assert choose_mask_token(tiny(), MODEL, published_head(tiny())) == 2
    assert choose_mask_token(tiny(), MODEL, {"ptd_token_id": 7}) == 7
    assert choose_mask_token(tiny(), MODEL, {}) == 2
    without = Checkpoint("tiny", MODEL.config, tokenizer=Tokenizer(vocab_size=1000))
    assert choose_mask_token(tiny(), without, {}) == 1000
    assert choose_mask_token(tiny(), without, {}, 900) == 900


@pytest.mark.parametrize(
    ("token", "code"),
    [(1, "mask-token-used"), (0, "mask-token-used"), (3, "mask-token-used"), (1024, "out-of-range"),
     (None, "no-mask-token")],
)  # fmt: skip
def test_a_mask_that_text_has_is_refused(token: int | None, code: str) -> None:
    full = Checkpoint("tiny", MODEL.config, tokenizer=Tokenizer(vocab_size=1024))
    with raises_code(code):
        choose_mask_token(tiny(), full, {}, token)


def test_a_small_memory_has_room_for_fewer_anchors() -> None:
    recipe = Recipe(sequence_length=4096)
    assert anchors_within(recipe, 1024, 80 << 30) == 4096
    assert 64 < anchors_within(recipe, 201_088, 40 << 30) < 4096
    assert anchors_within(recipe, 201_088, None) == 4096
