"""The results of vLLM's own functions. A script that the engine's Python runs.

Importing vLLM takes ten seconds of CPU time, so this begins as a fork of what has imported it. Each
line of the input, ``["kv_groups", [...]]``, names a function of this module and its argument, and a
line of the output is what this function returns. Each call runs in a fork, so that no call affects
another.
"""

import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
BLOCK_TOKENS = 16


def main() -> None:
    """Answer calls until the input ends; ``null`` for a call that raised an error."""
    answers = os.dup(1)
    os.dup2(2, 1)  # where vLLM prints
    os.environ.update(SETTINGS)
    sys.path.insert(0, os.path.dirname(__file__))
    import vllm.engine.arg_utils
    import vllm.entrypoints.openai.cli_args
    import vllm.v1.core.kv_cache_utils
    import vllm.v1.kv_cache_interface  # noqa: F401

    for line in sys.stdin:
        name, argument = json.loads(line)
        if (child := os.fork()) == 0:
            try:
                answer = json.dumps(globals()[name](argument), default=repr)
                with os.fdopen(answers, "w") as stream:
                    stream.write(f"{answer}\n")
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            os.write(answers, b"null\n")


def parsed_answers(questions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Answers of models as vLLM's parsers read them; see parsing.py."""
    parsing = importlib.import_module("parsing")  # beside this script
    return {name: parsing.parsed_answer(question) for name, question in questions.items()}


def refusals(engines: list[dict[str, Any]]) -> list[str | None]:
    """vLLM's error for each set of arguments of ``EngineArgs``; ``None`` if it accepts them."""
    return [_refusal(engine) for engine in engines]


def _refusal(engine: dict[str, Any]) -> str | None:
    from vllm.engine.arg_utils import EngineArgs

    try:
        EngineArgs(**engine).create_engine_config()
    except ValueError as error:
        return str(error)
    return None


def runner_v2(engines: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """The arguments of each engine that model runner V2 does not support, by vLLM's own list."""
    from vllm.engine.arg_utils import EngineArgs

    configs = {
        name: EngineArgs(**arguments).create_engine_config() for name, arguments in engines.items()
    }
    return {
        name: config._get_v2_model_runner_unsupported_features() for name, config in configs.items()
    }


def imposed_rates(engine: dict[str, Any]) -> list[float]:
    """The share of drafts that vLLM accepts at each position, whatever it is sent."""
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(**engine).create_engine_config().speculative_config
    assert config is not None
    return list(config.synthetic_acceptance_rates or [])


def synthetic_on_cpu(_: None) -> str:
    """What the CPU engine's sampler says of imposed rates; empty if it would impose them."""
    from vllm.utils import cpu_triton_utils

    nothing = [None] * 7
    try:
        cpu_triton_utils.rejection_greedy_sample_kernel[(1,)](*nothing, SYNTHETIC_MODE=True)
    except AssertionError as error:
        return str(error)
    return ""


def kv_groups(models: list[list[dict[str, Any]]]) -> list[int | None]:
    """The number of cache groups that hold layers of the drafter, for each model as a list of its
    layers; ``None`` if vLLM cannot group them.

    A layer has ``drafter`` (whether it belongs to the drafter), ``kv_heads``, ``head_dim`` and
    ``window``.
    """
    return [_kv_groups(layers) for layers in models]


def _kv_groups(layers: list[dict[str, Any]]) -> int | None:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

    specs = {f"layer.{number}": _spec(layer) for number, layer in enumerate(layers)}
    drafter = {f"layer.{n}" for n, layer in enumerate(layers) if layer["drafter"]}
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False)
    )
    try:
        groups = get_kv_cache_groups(config, specs)
    except NotImplementedError:
        return None
    return sum(not drafter.isdisjoint(group.layer_names) for group in groups)


def cache_capacity(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cache of each model in blocks, tokens and requests, and the bytes that one request needs.

    A model has ``layers`` as for ``kv_groups``, ``length``, ``in_flight`` and ``available`` bytes.
    """
    return [_capacity(model) for model in models]


def _capacity(model: dict[str, Any]) -> dict[str, Any]:
    from vllm.v1.core import kv_cache_utils as utils

    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=model["length"]),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        cache_config=SimpleNamespace(num_gpu_blocks_override=None),
        max_in_flight_tokens=model["in_flight"],
        speculative_config=None,
        kv_transfer_config=None,
    )
    layers = {
        f"model.layers.{number}": _spec(layer, indexes_kv_by_block_stride=True)
        for number, layer in enumerate(model["layers"])
    }
    groups = utils.get_kv_cache_groups(config, layers)
    made = utils.get_kv_cache_config_from_groups(config, groups, model["available"])
    tokens, concurrency = utils.get_kv_cache_capacity(config, made)
    needed = utils._max_memory_usage_bytes_from_groups(config, groups)
    return {"blocks": made.num_blocks, "tokens": tokens, "concurrency": concurrency,
            "needed": needed}  # fmt: skip


def _spec(layer: dict[str, Any], **more: Any) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    sizes = {
        **more,
        "block_size": BLOCK_TOKENS,
        "num_kv_heads": layer["kv_heads"],
        "head_size": layer["head_dim"],
        "dtype": torch.float8_e4m3fn if layer.get("element") == 1 else torch.bfloat16,
    }
    if layer["window"] is None:
        return FullAttentionSpec(**sizes)
    return SlidingWindowSpec(**sizes, sliding_window=layer["window"])


def parsed(argvs: dict[str, list[str]]) -> dict[str, Any]:
    """The values that vLLM's parser reads from each list of arguments; ``None`` if refused.

    Also ``flags`` (whether each takes a value), ``choices`` (the only values of a flag),
    ``numbers`` (the type of a flag with a number), ``variables`` of vLLM's environment, ``source``
    (the text that defines the flags) and ``built`` (the engine's own arguments, for all lists whose
    name starts with ``served``).
    """
    import vllm.envs
    from huggingface_hub import constants
    from vllm.engine import arg_utils
    from vllm.entrypoints.openai import cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    constants.HF_HUB_OFFLINE = False  # else vLLM requires the named models on this machine
    parser = cli_args.make_arg_parser(FlexibleArgumentParser())
    read = {name: _parsed(parser, argv) for name, argv in argvs.items()}
    sources = []
    for module in (arg_utils, cli_args):
        with open(str(module.__file__), encoding="utf-8") as stream:
            sources.append(stream.read())
    return {
        "flags": {flag: action.nargs != 0 for action in parser._actions
                  for flag in action.option_strings},
        "choices": {flag: list(map(str, action.choices)) for flag, action in _single(parser)
                    if action.choices},
        "numbers": {flag: action.type.__name__ for flag, action in _single(parser)
                    if action.type in (int, float) and not action.choices},
        "variables": list(vllm.envs.environment_variables),
        "source": "".join(sources),
        "built": {name: vars(arg_utils.AsyncEngineArgs.from_cli_args(defaults))
                  for name, defaults in read.items() if name.startswith("served ")},
        **{name: defaults and vars(defaults) for name, defaults in read.items()},
    }  # fmt: skip


def _single(parser: Any) -> Iterator[tuple[str, Any]]:
    """The flags that take one value."""
    for action in parser._actions:
        if action.nargs is None:
            yield from ((flag, action) for flag in action.option_strings if flag[:2] == "--")


def _parsed(parser: Any, argv: list[str]) -> Any:
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return parser.parse_args(argv)
    except SystemExit:
        return None


if __name__ == "__main__":
    main()
