"""What vLLM does with each of many pairs. A script that the engine's Python runs.

    python drafting.py CASES.json OUTCOMES.json

Each case runs in a fork of a process that has imported vLLM already, so that a case takes seconds,
and one that crashes does not affect the others. The script needs nothing of the toolkit but its
plugin for vLLM, if a case uses it.

A case is killed when it has used too much CPU time, or none for a long time; neither depends on the
load of the machine.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PLACES = (HERE / "tiles", HERE.parents[1] / "containers")
"""Folders of the modules that a case may name."""
PROCESSOR_SECONDS = 300.0
"""The limit of a case; usual are 0.1 to 8."""
IDLE_SECONDS = 120.0
"""The limit without any CPU time: the case then waits for something that never happens."""
LOOK_SECONDS = 2.0
M_PERTURB = -6
"""Of malloc.h."""
SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


def main() -> None:
    """Read the cases, run them one after another, and write their outcomes by name."""
    cases_file, outcomes_file = sys.argv[1:]
    with open(cases_file) as file:
        cases = json.load(file)
    os.environ.update(SETTINGS)
    sys.path += map(str, PLACES)
    fill_new_memory()
    warm_up(cases[0]["engine"])
    outcomes = {case["name"]: in_a_fork(case) for case in cases}
    with open(outcomes_file, "w") as file:
        json.dump(outcomes, file)


def fill_new_memory() -> None:
    """So that what vLLM leaves uninitialized is not zero by luck: MALLOC_PERTURB_ from here on."""
    assert ctypes.CDLL(None).mallopt(M_PERTURB, 0xA5) == 1


def warm_up(engine: dict[str, Any]) -> None:
    """Import what every case needs, and fill vLLM's caches of model classes.

    On a CPU with AMX tiles torch gives products of 8-bit floats to oneDNN, which has no fast code
    for them before AMX-FP16: 27 s for one of 2048 x 256 x 1024, which torch itself does in 25 ms.
    """
    import torch
    import vllm.entrypoints.llm
    import vllm.v1.worker.cpu_model_runner  # noqa: F401
    from vllm.engine.arg_utils import EngineArgs

    torch.backends.mkldnn.set_flags(False)
    EngineArgs(**engine).create_engine_config()


def in_a_fork(case: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a case in its own process. This process then imports the same modules, so that
    later cases need not."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setpgid(0, 0)
        with os.fdopen(writer, "w") as reported:
            before = set(sys.modules)
            result = outcome(case)
            json.dump({**result, "modules": sorted(set(sys.modules) - before)}, reported)
        os._exit(0)
    os.close(writer)
    text, reason = read_all(reader, child)
    status = os.waitpid(child, 0)[1]
    if not text:
        ended = f"exit {os.waitstatus_to_exitcode(status)}"
        return {"stage": "killed", "error": f"{ended}: {reason}" if reason else ended}
    reply: dict[str, Any] = json.loads(text)
    import_all(reply.pop("modules"))
    return reply


def import_all(names: list[str]) -> None:
    """Import these modules; ignore those that cannot be imported."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if names:
        gc.collect()
        gc.freeze()  # so that garbage collection in a fork does not copy this memory


def read_all(reader: int, child: int) -> tuple[bytes, str]:
    """Everything from the pipe, and why the child was killed, if it was."""
    text, reason, used, idle = b"", "", 0.0, 0.0
    while True:
        if select.select([reader], [], [], LOOK_SECONDS)[0]:
            part = os.read(reader, 65536)
            text += part
            if not part:
                os.close(reader)
                return text, reason
            continue
        before, used = used, processor_seconds(child)
        idle = 0.0 if used > before else idle + LOOK_SECONDS
        if used > PROCESSOR_SECONDS or idle > IDLE_SECONDS:
            reason = f"stopped after {used:.0f} s of CPU time, {idle:.0f} s idle"
            os.killpg(child, signal.SIGKILL)


def processor_seconds(process: int) -> float:
    """The CPU time of all threads of this process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def outcome(case: dict[str, Any]) -> dict[str, Any]:
    """The last stage of the case, its error, its answers and its drafts."""
    result: dict[str, Any] = {"stage": "config", "error": ""}
    try:
        os.environ.update(case["environment"])
        for module, function in case["before"]:
            getattr(importlib.import_module(module), function)()
        run(case, result)
    except BaseException as error:  # whatever ends the engine is the outcome
        where = traceback.extract_tb(error.__traceback__)[-1].name
        result["error"] = f"{type(error).__name__} in {where}: {error}"
    return result


def run(case: dict[str, Any], result: dict[str, Any]) -> None:
    """Build vLLM's config, start the engine, send the prompts; ``result`` gets each stage."""
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs

    settings = {"disable_log_stats": False, **case["engine"]}
    if case["config_only"]:
        EngineArgs(**settings).create_engine_config()
    else:
        result["stage"] = "start"
        engine = LLM(**settings)
        result["stage"] = "request"
        greedy = SamplingParams(temperature=0.0, max_tokens=case["max_tokens"], ignore_eos=True)
        answers = engine.generate(case["prompts"], greedy, use_tqdm=False)
        result["answers"] = [list(answer.outputs[0].token_ids) for answer in answers]
        result.update(counted(engine.get_metrics()))
    result["stage"] = "served"


def counted(metrics: list[Any]) -> dict[str, Any]:
    """The number of drafts, and of accepted tokens: in total and at each position."""
    values = {metric.name: metric for metric in metrics if "spec_decode" in metric.name}
    if not values:
        return {"drafts": 0, "accepted": 0, "accepted_at": []}
    return {
        "drafts": values["vllm:spec_decode_num_drafts"].value,
        "accepted": values["vllm:spec_decode_num_accepted_tokens"].value,
        "accepted_at": values["vllm:spec_decode_num_accepted_tokens_per_pos"].values,
    }


if __name__ == "__main__":
    main()
