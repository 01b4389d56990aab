"""The time from ``peagle deploy tiny --sandbox --yes`` to the first streamed token.

Goal: at most 90 s on 2 cores, with the engine installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

NAME = "first-token"


def _peagle(*arguments: str) -> str:
    command = [sys.executable, "-m", "peagle.cli", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Deploy with its own PEAGLE_HOME, send one request, clean up, and print the seconds."""
    from peagle.engine.machine import find_engine

    os.environ.setdefault("PEAGLE_ENGINE_PYTHON", str(find_engine("0.28.0").python))
    with tempfile.TemporaryDirectory() as home:
        os.environ["PEAGLE_HOME"] = home
        begin = time.perf_counter()
        try:
            _peagle("deploy", "tiny", "--name", NAME, "--sandbox", "--yes")
            deployed = time.perf_counter() - begin
            answer = json.loads(_peagle("invoke", NAME, "def add(a, b):", "--sandbox", "--json"))
        finally:
            _peagle("sandbox", "stop")
    total = deployed + answer["first_token_seconds"]
    print(f"deployed and proved      {deployed:.1f} s")
    print(f"first streamed token     {total:.1f} s   goal 90 s   {total / 90:.2f}")


if __name__ == "__main__":
    main()
