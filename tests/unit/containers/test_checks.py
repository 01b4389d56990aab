"""Variables that are refused, each with message and fix, in every spelling that reaches vLLM."""

import json
import re
from pathlib import Path

import pytest

from peagle.data import entrypoint_folder
from peagle_serve import environment as environment_module
from peagle_serve.checks import check, check_no_code, code_variables, read_port
from peagle_serve.command import command
from peagle_serve.contract import OWN_VARIABLES, SPECULATION, InvalidEnvironment, read_number
from peagle_serve.environment import (
    KNOWN,
    arguments,
    canonical_name,
    check_arguments,
    distributions,
    is_for_cpu,
    make_flag,
    normalized,
)
from peagle_serve.json_reader import InvalidJson, read
from tests.unit.containers.arguments import SOURCE

HANDED_ON = {
    "PEAGLE_ENGINE_STARTED", "PEAGLE_SUPERVISOR_SOCKET", "PEAGLE_WARM_PLACE", "PEAGLE_WARM_SUBJECT",
}  # fmt: skip
"""Variables that the entrypoint sets for the engine."""
GOOD = '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 7}'
DRAFTER = json.loads(GOOD)


def refusal(environment: dict[str, str]) -> str:
    """Message and fix as the container writes them; "" if it would start vLLM."""
    try:
        check(normalized(environment))
        check_arguments({name: value for name, value in environment.items() if "-" not in name})
    except InvalidEnvironment as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("config", "words"), [
    ("{method:eagle3}", "is not valid JSON ... double quotes"),
    ('["eagle3"]', 'is not a JSON object ... {"method": "eagle3"'),
    ("{}", "has num_speculative_tokens null ... at least 1"),
    ('{"num_speculative_tokens": 0}', "num_speculative_tokens 0 ... at least 1"),
    ('{"num_speculative_tokens": true}', "num_speculative_tokens true ... at least 1"),
    ('{"method": "eagle3", "num_speculative_tokens": 7}', 'no drafter ... "model"'),
    ('{"model": "a/b", "num_speculative_tokens": 7}', 'no method ... "method": "eagle3"'),
    (GOOD, ""),
    ('{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}', ""),
    ('{"method": "ngram", "num_speculative_tokens": 1}', ""),
    ('{"method": "ngram", "num_speculative_tokens": null}', "num_speculative_tokens null"),
    ('{"method": "eagle", "num_speculative_tokens": 1, "model": ""}', "no drafter"),
    ('{"method": "deepseek_mtp"}', ""),
    ('{"method": "suffix"}', "")
])  # fmt: skip
def test_a_speculative_config(config: str, words: str) -> None:
    reported = refusal({SPECULATION: config})
    assert reported.startswith(SPECULATION) is bool(words)
    assert all(part in reported for part in words.split(" ... "))


REFUSED: list[tuple[dict[str, str], str]] = [
    # names
    ({"SPECULATIVE_CONFIG": "1"}, "did you mean SM_VLLM_SPECULATIVE_CONFIG?"),
    ({"OPTION_SPECULATIVE_CONFIG": "1"}, "did you mean SM_VLLM_SPECULATIVE_CONFIG?"),
    ({"sm_vllm_max_model_len": "1"}, "did you mean SM_VLLM_MAX_MODEL_LEN?"),
    ({"VLLM_MAX_MODEL_LEN": "1"}, "did you mean SM_VLLM_MAX_MODEL_LEN?"),
    # spellings
    ({"SM_VLLM_load-format": "auto", "SM_VLLM_LOAD_FORMAT": "pt"}, "set the same argument"),
    ({"SM_VLLM_compilation_config.backend": "a.b"}, "is a part of SM_VLLM_COMPILATION_CONFIG"),
    # other ways to pass arguments
    ({"SM_VLLM_config": "/opt/ml/model/evil.yaml"}, "SM_VLLM_CONFIG is not supported"),
    ({"SM_VLLM_spec_model": "a/head"}, "SM_VLLM_SPEC_MODEL is not supported"),
    # code of a model's repository
    ({"SM_VLLM_TRUST_REMOTE_CODE": ""}, "SM_VLLM_TRUST_REMOTE_CODE lets code"),
    ({"SM_VLLM_trust_remote_code": "1"}, "SM_VLLM_TRUST_REMOTE_CODE lets code"),
    ({"SM_VLLM_TRUST-REMOTE-CODE": "true"}, "SM_VLLM_TRUST_REMOTE_CODE lets code"),
    ({"SM_VLLM_HF_OVERRIDES": '{"trust_remote_code": true}'}, "lets code"),
    ({"SM_VLLM_HF_OVERRIDES": '{"a": {"trust_remote_code" :  1}}'}, "lets code"),
    ({"SM_VLLM_hf_overrides": '{"trust_remote\\u005fcode": true}'}, "lets code"),
    (
        {"SM_VLLM_HF_OVERRIDES": '{"trust_remote_code": false, "TRUST_REMOTE_CODE": "yes"}'},
        "lets code"
    ),
    ({SPECULATION: GOOD[:-1] + ', "trust_remote_code": true}'}, "lets code"),
    # pickles
    *(
        ({"SM_VLLM_LOAD_FORMAT": name}, f"SM_VLLM_LOAD_FORMAT has load format {name}")
        for name in ("pt", "npcache", "hf", "tensorizer", "gguf", "bitsandbytes")
    ),
    ({"SM_VLLM_LOAD-FORMAT": "NpCache"}, "SM_VLLM_LOAD_FORMAT has load format npcache"),
    (
        {SPECULATION: json.dumps({**DRAFTER, "draft_load_config": {"load_format": "pt"}})},
        "SM_VLLM_SPECULATIVE_CONFIG has load format pt"
    ),
    (
        {"SM_VLLM_MODEL_LOADER_EXTRA_CONFIG": '{"a": [{"load\\u005fformat": "HF"}]}'},
        "SM_VLLM_MODEL_LOADER_EXTRA_CONFIG has load format hf"
    ),
    # prompts in the log, counters, the port
    ({"SM_VLLM_Enable-Log_Requests": "true"}, "writes prompts into the log"),
    ({"SM_VLLM_ENABLE_LOG_OUTPUTS": "true"}, "writes prompts into the log"),
    ({"VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "true"}, "writes prompts into the log"),
    *(
        ({SPECULATION: GOOD, "SM_VLLM_DISABLE_LOG_STATS": value}, f"remove it, or {SPECULATION}")
        for value in ("true", "", " TRUE ")
    ),
    ({"SM_VLLM_speculative_config": GOOD, "SM_VLLM_disable_log_stats": ""}, "turns off the count"),
    ({"SM_VLLM_port": "9000"}, "SM_VLLM_PORT is 9000"),
    *(({"SAGEMAKER_BIND_TO_PORT": port}, "SAGEMAKER_BIND_TO_PORT is") for port in ("0", "65536")),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "words"), REFUSED, ids=lambda case: str(case)[:60])
def test_what_is_refused(environment: dict[str, str], words: str) -> None:
    reported = refusal(environment)
    assert words in reported
    assert "\n" not in reported


SPECIAL = {
    SPECULATION: GOOD, "SM_VLLM_GPU_MEMORY_UTILIZATION": "0.9", "SM_VLLM_LOAD_FORMAT": "auto",
    "SM_VLLM_TRUST_REMOTE_CODE": "false", "SM_VLLM_ENFORCE_EAGER": "true",
    "SM_VLLM_ENABLE_PREFIX_CACHING": "true",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, (SPECIAL.get(name, "1"),)) for name in (*KNOWN, *OWN_VARIABLES)),
        *((name, ("1",)) for name in (
            "SM_VLLM_max_model_len", "SM_VLLM_SEED", "SM_MODEL_DIR", "SM_HP_MODEL",
            "SAGEMAKER_PROGRAM", "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", "VLLM_LOGGING_LEVEL",
            "PEAGLE_HOME", "PEAGLE_CATALOG", "PEAGLE_ENGINE_PYTHON", "HF_MODEL_ID", "MODEL", "PATH",
            "MAX_MODEL_LEN", "MODEL_IMPL", "CONFIG", "ENFORCE_EAGER"
        )),
        ("SM_VLLM_MAX_MODEL_LEN", ("16384", "16k", "1.5K", "auto", "-1")),
        ("SM_VLLM_ENFORCE_EAGER", ("true", "FALSE", "", " true ")),
        ("SM_VLLM_NO_TRUST_REMOTE_CODE", ("true",)),
        ("SM_VLLM_HF_OVERRIDES", ('{"trust_remote_code": false}',)),
        ("SM_VLLM_ENABLE_LOG_REQUESTS", ("false",)),
        ("SM_VLLM_DISABLE_LOG_STATS", ("true",)),
        ("SM_VLLM_PORT", ("8080",)),
        ("SM_VLLM_LOAD_FORMAT", ("auto", "safetensors", "AUTO", "runai_streamer"))
    ],
)  # fmt: skip
def test_what_is_accepted(name: str, values: tuple[str, ...]) -> None:
    for value in values:
        assert refusal({name: value}) == ""


def test_every_setting_that_the_entrypoint_reads_is_listed() -> None:
    sources = entrypoint_folder().rglob("*.py")
    read = {name for file in sources for name in re.findall(r"\bPEAGLE_\w+", file.read_text())}
    assert read - {"PEAGLE_", *HANDED_ON} == set(OWN_VARIABLES)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *((name, "true", "") for name in (
            *KNOWN, "SM_VLLM_NO_ENABLE_PREFIX_CACHING", "SM_VLLM_dtype", "HF_TOKEN", "VLLM_OTHER")),
        ("SM_VLLM_ROOT_PATH", "maybe", ""),
        ("SM_VLLM_HF_TOKEN", "maybe", ""),
        *((name, value, "")
          for name in ("SM_VLLM_ENABLE_LORA", "SM_VLLM_HEADLESS") for value in ("False", "")),
        *((name, "maybe", f"{name} is 'maybe' (set it to true or false)") for name in (
            "SM_VLLM_ENABLE_LORA", "SM_VLLM_ENABLE_PREFIX_CACHING", "SM_VLLM_HEADLESS",
            "SM_VLLM_NO_ENABLE_PREFIX_CACHING")),
        ("SM_VLLM_MAX_MODEL_LENGTH", "1", "(did you mean SM_VLLM_MAX_MODEL_LEN?)"),
        *((name, "true", "SM_VLLM_TRUST_REMOTE_CODE?)")
          for name in ("SM_VLLM_TRUST_REM", "SM_VLLM_trust-rem")),
        ("SM_VLLM_", "", "SM_VLLM_ is not an argument"),
        ("SM_VLLM_ROOT_PAHT", "", "of this vLLM version (did you mean SM_VLLM_ROOT_PATH?)"),
        ("SM_VLLM_ZZZ", "", "remove it, or use another version"),
        ("SM_VLLM_*", "", "is not an argument")
    ],
)  # fmt: skip
def test_arguments_are_those_of_the_installed_vllm(name: str, value: str, words: str) -> None:
    if words:
        with pytest.raises(InvalidEnvironment) as refused:
            check_arguments({name: value}, SOURCE)
        assert words in str(refused.value)
    else:
        check_arguments({name: value}, SOURCE)
    for unknown in ("", "def f(): ...", SOURCE.replace('"--dtype"', '"-d"')):
        check_arguments({name: value}, unknown)


def test_other_spellings_reach_vllm_as_the_usual_one() -> None:
    usual = {"SM_VLLM_MODEL": "a/b", "SM_VLLM_MAX_MODEL_LEN": "8k", "SM_VLLM_NO_ENABLE_LORA": ""}
    other = {"SM_VLLM_model": "a/b", "SM_VLLM_max-model-len": "8k", "SM_VLLM_no_enable_Lora": ""}
    assert command(other) == command(usual)
    assert normalized({"sm_vllm_x": "1", "HOME": "/"}) == {"sm_vllm_x": "1", "HOME": "/"}
    assert canonical_name("SM_VLLM_a-B") == "SM_VLLM_A_B"
    assert make_flag("SM_VLLM_A_B") == "--a-b"


CHOOSES_CODE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PATH",
            "DYLD_INSERT_LIBRARIES", "HOME", "CC", "TMPDIR", "GCONV_PATH", "OPENSSL_CONF",
            "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "VLLM_LOGGING_CONFIG_PATH", "PEAGLE_CACHE",
            "VLLM_NCCL_SO_PATH", "VLLM_TUNED_CONFIG_FOLDER", "HF_MODULES_CACHE", "PEAGLE_ML_ROOT",
            "TORCHINDUCTOR_CUTLASS_DIR", "TORCHINDUCTOR_CK_DIR", "NUMBA_CACHE_DIR", "PYTORCH_NVCC",
            "TORCHINDUCTOR_REDIS_URL", "TRITON_CACHE_MANAGER", "OUTLINES_CACHE_DIR",
            "SM_VLLM_WORKER_CLS", "SM_VLLM_MIDDLEWARE", "SM_VLLM_middleware", "SM_VLLM_config",
            "SM_VLLM_TOOL_PARSER_PLUGIN", "SM_VLLM_Tool-Parser-Plugin",
            "SM_VLLM_LOGITS_PROCESSOR_PATTERN", "CUDA_INJECTION64_PATH", "OMP_TOOL_LIBRARIES",
            "NCCL_NET_PLUGIN", "AWS_CONFIG_FILE", "A_VARIABLE_OF_TOMORROW",
            "SM_VLLM_DISTRIBUTED_EXECUTOR_BACKEND", "SM_VLLM_COMPILATION_CONFIG.BACKEND"
        ),
        ("a.b",)
    ),
    "VLLM_ALLOW_INSECURE_SERIALIZATION": ("1",),
    "VLLM_USE_MODELSCOPE": ("True",),
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": ("1",),
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO": ("1",),
    "SM_VLLM_TRUST_REMOTE_CODE": ("true",),
    "SM_VLLM_KV_TRANSFER_CONFIG": (
        '{"kv_connector_module_path": "a.b"}',
        '{"kv_connector_extra_config": {"spec_module_path": "a"}}',
        '{"kv_connector_extra_config": {"secondary_tiers": [{"module_path": "a"}]}}',
        '{"kv_connector_extra_config": {"cache_policy_module_path": "a"}}'
    ),
    "SM_VLLM_EC_TRANSFER_CONFIG": ('{"ec_connector_module_path": "a.b", "ec_rank": NaN}',),
    "SM_VLLM_ATTENTION_CONFIG": ('{"custom_class": "a.b", "custom_class": "a.b"}',),
    "SM_VLLM_COMPILATION_CONFIG": (
        '{"backend": "a.b.compile"}',
        '{"n": 1%s, "backend": "a.b"}' % ("0" * 5000),
        '{"inductor_passes": {"post_grad_custom_post_pass": "a.b"}}',
        '{"cache_dir": "/tmp"}',
        '{"mode": 3, "inductor_compile_config": {"cpp.cxx": [null, "/tmp/cc"]}}',
        '{"inductor_compile_config": {"rocm.ck_dir": "/tmp"}}',
        '{"inductor_compile_config": {"fx_graph_remote_cache": true}}',
        '{"inductor_compile_config": {"fx_graph_remote_cache": null}}',
        '{"inductor_compile_config": {"max_autotune": true, "cxx": "cc"}}',
        '{"a": [{"b": [1, {"cache_dir": ""}]}]}'
    ),
    "SM_VLLM_LOGITS": ('[{"x_qualname": "a.b"}]',),
    "SM_VLLM_SPECULATIVE_CONFIG": ('{"method": "custom_class", "model": "a.B"}',),
    "SM_VLLM_COMPILATION_CONFIG.INDUCTOR_PASSES.X": ("os.system",),
    "SM_VLLM_KV_TRANSFER_CONFIG.KV_CONNECTOR_EXTRA_CONFIG": ('{"spec_module_path": "a"}',),
    "SM_VLLM_STRUCTURED_OUTPUTS_CONFIG": ('{"reasoning_parser_plugin": "/tmp/a.py"}',),
    "SM_VLLM_EC_MANAGER_CONFIG": ('{"encoder_cache_manager_cls": "a.B"}',),
    "SM_VLLM_HF_OVERRIDES": ('{"text_config": {"trust_remote_code": true}}',),
}  # fmt: skip
HARMLESS = {
    "SM_VLLM_MODEL": "/opt/ml/model", "SM_VLLM_TRUST_REMOTE_CODE": "False",
    "SM_VLLM_DISTRIBUTED_EXECUTOR_BACKEND": "mp", "VLLM_ALLOW_INSECURE_SERIALIZATION": "0",
    "SM_VLLM_SPECULATIVE_CONFIG": '{"method": "eagle3", "model": "/opt/ml/model/drafter.v1"}',
    "SM_VLLM_COMPILATION_CONFIG": '{"cudagraph_mode": "FULL", "backend": "inductor", '
                                  '"inductor_compile_config": {"max_autotune": true, "n": 2, '
                                  '"x": 0.5, "y": null}, "pass_config": {"name": "a text"}}',
    "SM_VLLM_COMPILATION": '{"inductor_compile_config": "text"}',
    "SM_VLLM_COMPILATION_CONFIG.MODE": "3", "SM_VLLM_COMPILATION_CONFIG.BACKEND": "inductor",
    "VLLM_USE_MODELSCOPE": "False", "SM_VLLM_HF_OVERRIDES": "{broken", "HF_HOME": "/tmp",
    "VLLM_USE_V1": "1", "TZ": "UTC", "VLLM_PLUGINS": "", "CUDA_VISIBLE_DEVICES": "0",
    "OMP_NUM_THREADS": "2", "PEAGLE_WARM": "off", "AWS_REGION": "eu-west-1", "LC_ALL": "C",
    "PROCESS_AUTO_RECOVERY": "false", "RUNAI_STREAMER_MEMORY_LIMIT": "0",
    "OPTION_SPECULATIVE_DRAFT_MODEL": "a/b",
}  # fmt: skip


@pytest.mark.parametrize("name", CHOOSES_CODE)
def test_a_variable_that_may_choose_code_is_found(name: str) -> None:
    for value in CHOOSES_CODE[name]:
        assert code_variables({**HARMLESS, name: value}) == (name,)


def test_what_vllm_and_plans_need_is_passed_on() -> None:
    check_no_code(HARMLESS)
    with pytest.raises(InvalidEnvironment) as refused:
        check_no_code({"LD_PRELOAD": "/a", "PYTHONPATH": "/a", "SM_VLLM_MODEL": "m"})
    assert refused.value.message.startswith("LD_PRELOAD, PYTHONPATH: this chooses the code")


@pytest.mark.parametrize("server", ["openai", "launchers", "common", None])
def test_the_arguments_are_read_in_the_source_of_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str | None
) -> None:
    unknown = {"SM_VLLM_ZZZ": ""}
    for folder, text in (("engine", SOURCE), (f"entrypoints/{server}", "    other: int = 1")):
        (tmp_path / folder).mkdir(parents=True)
        name = "arg_utils.py" if folder == "engine" else "cli_args.py"
        (tmp_path / folder / name).write_text(text)
    monkeypatch.setattr(environment_module, "vllm_folder", lambda: tmp_path)
    if server is None:
        check_arguments(unknown)
        return
    check_arguments({"SM_VLLM_OTHER": "1"})
    with pytest.raises(InvalidEnvironment, match="SM_VLLM_ZZZ is not an argument"):
        check_arguments(unknown)
    monkeypatch.setattr(environment_module, "vllm_folder", lambda: None)
    check_arguments(unknown)


@pytest.mark.parametrize(("names", "is_cpu"), [
    (("torch-2.13.0+cpu.dist-info", "vllm-0.28.0.dist-info"), True),
    (("torch-2.13.0+CPU.dist-info",), True),
    (("torch-2.13.0+cu130.dist-info",), False),
    (("torchvision-0.28.0+cpu.dist-info",), False),
    ((), False),
])  # fmt: skip
def test_the_build_of_torch_says_whether_it_is_for_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], is_cpu: bool
) -> None:
    for name in (*names, "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    installed = distributions(["", "/no/such/folder"])
    assert installed == sorted(name.removesuffix(".dist-info") for name in names)
    assert is_for_cpu(installed) is is_cpu


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("1000000", 1_000_000), (" 7 ", 7), ("1000001", None), ("-1", None),
        ("", None), ("1.5", None), ("\u0663", None), ("0000000001", None),
    ],
)  # fmt: skip
def test_a_number_has_bounds(text: str, number: int | None) -> None:
    if number is None:
        with pytest.raises(InvalidEnvironment, match="X is "):
            read_number("X", text)
    else:
        assert read_number("X", text) == number


@pytest.mark.parametrize(
    ("text", "port"), [("1", 1), ("65535", 65535), ("0", None), ("65536", None), ("", 8080)]
)
def test_the_port_is_sagemakers(text: str, port: int | None) -> None:
    variables = {"SAGEMAKER_BIND_TO_PORT": text}
    if port is None:
        with pytest.raises(InvalidEnvironment, match="SAGEMAKER_BIND_TO_PORT is"):
            read_port(variables)
    else:
        assert read_port(variables) == port


# JSON from outside is read strictly; variables become vLLM's arguments byte for byte.
@pytest.mark.parametrize(("text", "message"), [
    ("", "it is not valid JSON: Expecting value (line 1, column 1)"),
    ('{"a": {"b": 1, "b": 2}}', "it has 'b' twice in one object"),
    ("[1,\n NaN]", "NaN is no number of JSON"),
    ("[1e400]", "1e400 is no number of JSON, or too large"),
    ('{"a":' * 100_000, "it cannot be read: maximum recursion depth"),
    (" " * (8 << 20) + "1", "it is longer than 8,388,608 bytes"),
    ('["\\ud800"]', "it has half of a surrogate pair"),
    ('"\ud800"', "it is not UTF-8"),
    (b'"\xff"', "it is not UTF-8"),
    (b"\xef\xbb\xbf1", "it is not valid JSON: Unexpected UTF-8 BOM"),
])  # fmt: skip
def test_what_is_refused_and_where(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        read(text, "it")
    assert message in str(caught.value)


@pytest.mark.parametrize(("value", "argv"), [
    ("true", ["--x-y"]),
    ("", ["--x-y"]),
    ("false", []),
    (" ", ["--x-y", " "]),
    ("a b", ["--x-y", "a b"]),
    ('{"a": 1}', ["--x-y", '{"a": 1}']),
    ('["a", "b c"]', ["--x-y", "a", "b c"]),
    ("[]", []),
    ('[{"a":  1}, 2.50, true, null]', ["--x-y", '{"a":  1}', "2.50", "true", ""]),
    ('{"a":1} {"b":2}', ["--x-y", '{"a":1}', '{"b":2}']),
    ("[1,]", ["--x-y", "[1,]"]),
    *((text, ["--x-y", text]) for text in ('{"a":1} 2', "{} {", "{}, {}")),
    ("{% for m in messages %}{{ m }}", ["--x-y", "{% for m in messages %}{{ m }}"]),
    ("-1", ["--x-y=-1"]),
    ("--model", ["--x-y=--model"]),
    ("[-1, 2, -0.5]", ["--x-y", "-1", "2", "-0.5"]),
])  # fmt: skip
def test_a_value_becomes_the_same_tokens_as_in_awss_container(value: str, argv: list[str]) -> None:
    assert arguments({"SM_VLLM_X_Y": value}) == argv


@pytest.mark.parametrize("value", ['["a", "-b"]', '["-a", "b"]', '["--model", ""]', "--", '["--"]'])
def test_what_vllm_would_read_as_an_argument_is_refused(value: str) -> None:
    with pytest.raises(InvalidEnvironment, match="SM_VLLM_X_Y has the value"):
        arguments({"SM_VLLM_X_Y": value})


def test_arguments_are_sorted_by_name_and_other_variables_ignored() -> None:
    environment = {"SM_VLLM_B": "2", "HF_TOKEN": "secret", "SM_VLLM_A": "1", "VLLM_C": "3"}
    assert arguments(environment) == ["--a", "1", "--b", "2"]
    for flag in ("ALLOWED_ORIGINS", "ALLOWED_METHODS", "ALLOWED_HEADERS"):
        assert arguments({f"SM_VLLM_{flag}": '["a", "b"]'})[1:] == ['["a", "b"]'], "vLLM parses it"
