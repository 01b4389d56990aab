"""Which settings vLLM starts with. Run by the engine's own python, as a script.

    python starting.py QUESTIONS.json ANSWERS.json

Each question is the arguments of an ``EngineArgs``; its answer the refusal, or ``null``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Read the questions, write the answers."""
    questions_file, answers_file = sys.argv[1:]
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    with open(questions_file) as file:
        questions = json.load(file)
    with open(answers_file, "w") as file:
        json.dump([refusal(asked) for asked in questions], file)


def refusal(arguments: dict[str, Any]) -> str | None:
    """What vLLM says against this engine's arguments."""
    from vllm.engine.arg_utils import EngineArgs

    try:
        EngineArgs(**arguments).create_engine_config()
    except ValueError as error:
        return str(error)
    return None


if __name__ == "__main__":
    main()
