"""An invalid environment is refused with message and fix."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.data import entrypoint_folder
from peagle_serve.contract import OWN_VARIABLES, SPECULATION, InvalidEnvironment
from peagle_serve.environment_checks import check, port_of
from peagle_serve.variable_names import KNOWN, check_arguments
from tests.unit.containers.arguments import SOURCE

HANDED_ON = {
    "PEAGLE_ENGINE_STARTED",
    "PEAGLE_SUPERVISOR_SOCKET",
    "PEAGLE_WARM_PLACE",
    "PEAGLE_WARM_SUBJECT",
}
"""Variables that the entrypoint sets for the engine."""

GOOD = '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 7}'


@pytest.mark.parametrize(
    ("config", "what", "fix"),
    [
        ("{method:eagle3}", "is not valid JSON", "double quotes"),
        ("{'method': 'eagle3'}", "is not valid JSON", "double quotes"),
        (
            GOOD[:-1],
            "is not valid JSON: Expecting ',' delimiter at character 65 of",
            "correct the JSON",
        ),
        ("", "is not valid JSON", "correct"),
        ("true", "is not a JSON object", '{"method": "eagle3"'),
        ("[" * 100_000, "is nested more than 64 levels deep", "correct"),
        ('["eagle3"]', "is not a JSON object", '{"method": "eagle3"'),
        ("{}", "has no num_speculative_tokens", "at least 1"),
        ('{"num_speculative_tokens": 0}', "num_speculative_tokens 0", "at least 1"),
        ('{"num_speculative_tokens": -3}', "num_speculative_tokens -3", "at least 1"),
        ('{"num_speculative_tokens": "7"}', 'num_speculative_tokens "7"', "at least 1"),
        ('{"num_speculative_tokens": true}', "num_speculative_tokens true", "at least 1"),
        ('{"num_speculative_tokens": 1.5}', "num_speculative_tokens 1.5", "at least 1"),
        ('{"num_speculative_tokens": null}', "num_speculative_tokens null", "at least 1"),
        ('{"method": "eagle3", "num_speculative_tokens": 7}', "no drafter", '"model"'),
        ('{"model": "a/eagle3", "num_speculative_tokens": 7}', "no method", '"method": "eagle3"'),
    ],
)
def test_an_invalid_speculative_config_is_refused(config: str, what: str, fix: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check({SPECULATION: config})

    assert SPECULATION in refused.value.message
    assert what in refused.value.message
    assert fix in refused.value.fix
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "config",
    [
        GOOD,
        f"\n {GOOD}\t",
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}',
        '{"method": "mtp"}',
        '{"method": "suffix"}',
        '{"method": "eagle3", "model": "a/100%b", "num_speculative_tokens": 1}',
    ],
)
def test_a_valid_speculative_config_is_accepted(config: str) -> None:
    check({SPECULATION: config})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SM_VLLM_SPECULATIVE_CONFG", "SM_VLLM_SPECULATIVE_CONFIG"),
        ("SPECULATIVE_CONFIG", "SM_VLLM_SPECULATIVE_CONFIG"),
        ("VLLM_SPECULATIVE_CONFIG", "SM_VLLM_SPECULATIVE_CONFIG"),
        ("OPTION_SPECULATIVE_CONFIG", "SM_VLLM_SPECULATIVE_CONFIG"),
        ("SM_VLM_SPECULATIVE_CONFIG", "SM_VLLM_SPECULATIVE_CONFIG"),
        ("sm_vllm_max_model_len", "SM_VLLM_MAX_MODEL_LEN"),
        ("SM_VLLM_MAX_MODEL_LENGTH", "SM_VLLM_MAX_MODEL_LEN"),
        ("SM_VLLM_TENSOR_PARALEL_SIZE", "SM_VLLM_TENSOR_PARALLEL_SIZE"),
        ("SMVLLM_MODEL", "SM_VLLM_MODEL"),
        ("SM_VLLM_MODL", "SM_VLLM_MODEL"),
        ("VLLM_MAX_MODEL_LEN", "SM_VLLM_MAX_MODEL_LEN"),
        ("PEAGLE_RESTART", "PEAGLE_RESTARTS"),
        ("PEAGLE_DRAIN", "PEAGLE_DRAIN_SECONDS"),
        ("PEAGLE_WARM_DIR", "PEAGLE_WARM"),
        ("peagle_ml_root", "PEAGLE_ML_ROOT"),
    ],
)
def test_a_misspelled_name_suggests_the_right_one(name: str, meant: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check({name: "1"})

    assert name in refused.value.message
    assert meant in refused.value.fix


@pytest.mark.parametrize(
    "name",
    [
        *KNOWN,
        "SM_VLLM_max_model_len",
        "SM_VLLM_TOKENIZER_MODE",
        "SM_VLLM_SEED",
        "SM_MODEL_DIR",
        "SM_HP_MODEL",
        "SAGEMAKER_PROGRAM",
        "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",
        "VLLM_LOGGING_LEVEL",
        *OWN_VARIABLES,
        "PEAGLE_HOME",
        "PEAGLE_CATALOG",
        "PEAGLE_ENGINE_PYTHON",
        "PEAGLE_ROLE",
        "HF_MODEL_ID",
        "MODEL",
        "PATH",
    ],
)
def test_valid_and_unrelated_names_are_accepted(name: str) -> None:
    switches = ("ENFORCE_EAGER", "ENABLE_PREFIX_CACHING")
    special = {SPECULATION: GOOD, "SM_VLLM_GPU_MEMORY_UTILIZATION": "0.9"}
    special |= {"SM_VLLM_TRUST_REMOTE_CODE": "false", "SM_VLLM_LOAD_FORMAT": "auto"}
    check({name: "true" if name.endswith(switches) else special.get(name, "1")})


@pytest.mark.parametrize(
    "given",
    [
        {"SM_VLLM_TRUST_REMOTE_CODE": "true"},
        {"SM_VLLM_TRUST_REMOTE_CODE": ""},
        {"SM_VLLM_trust_remote_code": "1"},
        {"SM_VLLM_TRUST-REMOTE-CODE": "true"},
        {"SM_VLLM_HF_OVERRIDES": '{"trust_remote_code": true}'},
        {"SM_VLLM_HF_OVERRIDES": '{"a": {"trust_remote_code" :  1}}'},
        {"SM_VLLM_HF_OVERRIDES": '{"trust_remote_code": false, "TRUST_REMOTE_CODE": "yes"}'},
        {"SM_VLLM_LIMIT_MM_PER_PROMPT": '["x", "--trust-remote-code"]'},
        {SPECULATION: GOOD[:-1] + ', "trust_remote_code": true}'},
    ],
)
def test_code_of_a_models_repository_never_runs(given: dict[str, str]) -> None:
    with pytest.raises(InvalidEnvironment):
        check(given)


@pytest.mark.parametrize(
    "given",
    [
        {"SM_VLLM_TRUST_REMOTE_CODE": "false"},
        {"SM_VLLM_NO_TRUST_REMOTE_CODE": "true"},
        {"SM_VLLM_HF_OVERRIDES": '{"trust_remote_code": false}'},
    ],
)
def test_remote_code_may_be_declined(given: dict[str, str]) -> None:
    check(given)


@pytest.mark.parametrize("named", ["pt", "npcache", "hf", "tensorizer", "gguf", "bitsandbytes"])
def test_only_load_formats_of_safetensors_are_accepted(named: str) -> None:
    with pytest.raises(InvalidEnvironment, match=f"{named} reads other weights than safetensors"):
        check({"SM_VLLM_LOAD_FORMAT": named})


@pytest.mark.parametrize("name", ["MAX_MODEL_LEN", "MODEL_IMPL", "CONFIG", "ENFORCE_EAGER"])
def test_any_value_of_an_unrelated_name_is_accepted(name: str) -> None:
    check({name: "anything"})


def test_an_unrelated_name_is_accepted_beside_a_known_one() -> None:
    check({"VLLM_MODEL": "a/b", "SM_VLLM_MODEL": "a/b"})


def test_every_setting_that_the_entrypoint_reads_is_listed() -> None:
    sources = (entrypoint_folder()).rglob("*.py")
    read = {name for file in sources for name in re.findall(r"\bPEAGLE_\w+", file.read_text())}

    assert read - {"PEAGLE_", *HANDED_ON} == set(OWN_VARIABLES)


@pytest.mark.parametrize("value", ["1", "yes", "on", "no"])
def test_a_switch_other_than_true_or_false_is_refused(value: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check({"SM_VLLM_ENFORCE_EAGER": value})
    assert refused.value.message == f"SM_VLLM_ENFORCE_EAGER is {value!r}"
    assert refused.value.fix == "set it to true or false"


def test_a_negated_switch_is_a_switch() -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check({"SM_VLLM_NO_ENABLE_PREFIX_CACHING": "maybe"})
    assert refused.value.message == "SM_VLLM_NO_ENABLE_PREFIX_CACHING is 'maybe'"


@pytest.mark.parametrize("value", ["true", "FALSE", "", " true "])
def test_a_switch_is_true_or_false(value: str) -> None:
    check({"SM_VLLM_ENFORCE_EAGER": value})


@pytest.mark.parametrize("value", ["lots", "16 k", "1e4", "-5", "", "16kk", "0", "0.0k"])
def test_an_invalid_length_is_refused(value: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check({"SM_VLLM_MAX_MODEL_LEN": value})
    assert refused.value.message == f"SM_VLLM_MAX_MODEL_LEN is {value!r}"
    assert "16384, 16k or auto" in refused.value.fix


@pytest.mark.parametrize("value", ["16384", "16k", "1.5K", "auto", "-1"])
def test_vllms_notations_of_a_length_are_accepted(value: str) -> None:
    check({"SM_VLLM_MAX_MODEL_LEN": value})


@pytest.mark.parametrize("value", ["0", "-1", "auto", "many"])
def test_an_invalid_number_of_batched_tokens_is_refused(value: str) -> None:
    check({"SM_VLLM_MAX_NUM_BATCHED_TOKENS": "8k"})
    with pytest.raises(InvalidEnvironment) as refused:
        check({"SM_VLLM_MAX_NUM_BATCHED_TOKENS": value})
    assert refused.value.message == f"SM_VLLM_MAX_NUM_BATCHED_TOKENS is {value!r}"
    assert "8192 or 8k" in refused.value.fix


def test_a_choice_that_vllm_would_ignore_is_refused() -> None:
    check({"SM_VLLM_MODEL_IMPL": "transformers"})
    with pytest.raises(InvalidEnvironment) as refused:
        check({"SM_VLLM_MODEL_IMPL": "zz"})
    assert refused.value.message == "SM_VLLM_MODEL_IMPL is 'zz'"
    assert "transformers" in refused.value.fix


@pytest.mark.parametrize("value", ["true", "", " TRUE "])
def test_speculation_without_counters_is_refused(value: str) -> None:
    off = {"SM_VLLM_DISABLE_LOG_STATS": value}
    check(off)
    check({SPECULATION: GOOD, "SM_VLLM_DISABLE_LOG_STATS": "false"})
    with pytest.raises(InvalidEnvironment) as refused:
        check({SPECULATION: GOOD, **off})
    assert refused.value.fix == f"remove it, or {SPECULATION}"


@pytest.mark.parametrize(
    "name",
    [
        "SM_VLLM_ENABLE_LOG_REQUESTS",
        "SM_VLLM_ENABLE_LOG_OUTPUTS",
        "VLLM_DEBUG_LOG_API_SERVER_RESPONSE",
    ],
)
def test_logging_of_prompts_is_refused(name: str) -> None:
    check({name: "false"})
    with pytest.raises(InvalidEnvironment) as refused:
        check({name: "true"})
    assert refused.value.message == f"{name} writes prompts into the log"


@pytest.mark.parametrize(
    "name",
    [*KNOWN, "SM_VLLM_ROOT_PATH", "SM_VLLM_NO_ENABLE_PREFIX_CACHING", "SM_VLLM_dtype", "HF_TOKEN",
     "VLLM_OTHER"],
)  # fmt: skip
def test_an_argument_of_this_vllm_is_accepted(name: str) -> None:
    check_arguments({name: "true"}, SOURCE)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("SM_VLLM_ROOT_PAHT", "did you mean SM_VLLM_ROOT_PATH?"),
        ("SM_VLLM_ENABLE_AUTO_TOOLS", "did you mean SM_VLLM_ENABLE_AUTO_TOOL_CHOICE?"),
        ("SM_VLLM_MAX_SEQS", "did you mean SM_VLLM_MAX_NUM_SEQS?"),
        ("SM_VLLM_ZZZ", "remove it, or use a vLLM version that has the argument"),
        ("SM_VLLM_PATH", "did you mean SM_VLLM_ROOT_PATH?"),
    ],
)
def test_a_variable_without_an_argument_of_this_vllm_is_refused(name: str, fix: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check_arguments({name: ""}, SOURCE)
    assert refused.value.message == f"{name} is not an argument of this vLLM version"

    assert refused.value.fix == fix


@pytest.mark.parametrize("source", ["", "def f(): ...", SOURCE.replace('"--dtype"', '"-d"')])
def test_unrecognized_vllm_source_accepts_every_argument(source: str) -> None:
    check_arguments({"SM_VLLM_ZZZ": ""}, source)


@pytest.mark.parametrize(
    "name",
    [
        "SM_VLLM_ENABLE_LORA",
        "SM_VLLM_ENABLE_PREFIX_CACHING",
        "SM_VLLM_NO_ENABLE_PREFIX_CACHING",
        "SM_VLLM_HEADLESS",
    ],
)
def test_every_vllm_switch_accepts_only_true_or_false(name: str) -> None:
    for value in ("true", "False", ""):
        check_arguments({name: value}, SOURCE)
    with pytest.raises(InvalidEnvironment) as refused:
        check_arguments({name: "maybe"}, SOURCE)
    assert refused.value.message == f"{name} is 'maybe'"
    assert refused.value.fix == "set it to true or false"


def test_an_argument_with_a_value_is_not_a_switch() -> None:
    check_arguments({"SM_VLLM_HF_TOKEN": "maybe", "SM_VLLM_ROOT_PATH": "maybe"}, SOURCE)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "", "٣"])
def test_an_invalid_count_is_refused(value: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check({"SM_VLLM_TENSOR_PARALLEL_SIZE": value})
    assert refused.value.message == f"SM_VLLM_TENSOR_PARALLEL_SIZE is {value!r}"
    assert "at least 1" in refused.value.fix


@pytest.mark.parametrize("value", ["0", "1.1", "90%", "nan"])
def test_an_invalid_share_of_memory_is_refused(value: str) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check({"SM_VLLM_GPU_MEMORY_UTILIZATION": value})
    assert refused.value.message == f"SM_VLLM_GPU_MEMORY_UTILIZATION is {value!r}"
    assert "above 0 and at most 1" in refused.value.fix


def test_the_port_is_set_by_sagemaker() -> None:
    assert port_of({}) == 8080
    assert port_of({"SAGEMAKER_BIND_TO_PORT": "18200"}) == 18200
    check({"SM_VLLM_PORT": "8080"})
    with pytest.raises(InvalidEnvironment) as refused:
        check({"SM_VLLM_PORT": "9000"})
    assert "9000" in refused.value.message
    assert refused.value.fix == "remove SM_VLLM_PORT"


@given(st.integers(min_value=65536) | st.integers(max_value=0))
def test_an_invalid_port_is_refused(port: int) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        port_of({"SAGEMAKER_BIND_TO_PORT": str(port)})
    assert "SAGEMAKER_BIND_TO_PORT" in refused.value.message


def test_a_variable_without_an_argument_is_refused() -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check({"SM_VLLM_": "1"})
    assert refused.value.fix == "remove it"


@pytest.mark.parametrize("name", ["CONFIG", "SPEC_METHOD", "SPEC_MODEL", "SPEC_TOKENS"])
def test_other_ways_to_pass_arguments_are_refused(name: str) -> None:
    """A head set there would be unchecked, unproved, and missing in a warm start's key."""
    with pytest.raises(InvalidEnvironment) as refused:
        check({f"SM_VLLM_{name}": "x"})
    assert f"SM_VLLM_{name} is not supported" in refused.value.message
