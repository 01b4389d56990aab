"""The time from ``peagle deploy tiny --sandbox --yes`` to the first streamed token.

Goal: at most 90 s on 2 cores, with the engine installed.
"""

from __future__ import annotations

import json
import time

from measurements.commands import run_peagle, temporary_home

NAME = "first-token"


def main() -> None:
    """Deploy with its own PEAGLE_HOME, send one request, clean up, and print the seconds."""
    with temporary_home():
        begin = time.perf_counter()
        try:
            run_peagle("deploy", "tiny", "--name", NAME, "--sandbox", "--yes")
            deployed = time.perf_counter() - begin
            answer = json.loads(run_peagle("invoke", NAME, "def add(a, b):", "--sandbox", "--json"))
        finally:
            run_peagle("sandbox", "stop")
    total = deployed + answer["first_token_seconds"]
    print(f"deployed and proved      {deployed:.1f} s")
    print(f"first streamed token     {total:.1f} s   goal 90 s   {total / 90:.2f}")


if __name__ == "__main__":
    main()
