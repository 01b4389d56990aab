"""Run all trials, or some: ``python -m tests.faults [--every N] [--only TEXT] [--part I/N]``.

A trial that breaks a promise is printed with the command that repeats it alone. Exit code 1 then.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.calls import shared_models
from tests.faults.commands import Broken
from tests.faults.trials import SCENARIOS, Trial, Trials, trials_of
from tests.sandbox.clients import shared_clients
from tests.sandbox.sandboxes import Sandbox, fake_engine, started


def main() -> int:
    options = _options()
    with TemporaryDirectory() as folder:
        place = Path(folder)
        engine = fake_engine(place / "engine")
        with shared_models(), shared_clients(), started(Sandbox(place / "home", engine)) as sandbox:
            return _run(Trials(sandbox), options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", default="", help="trials whose name contains this text")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth trial")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="one of N equal parts: 3/8")
    return parser.parse_args()


def _run(trials: Trials, options: argparse.Namespace) -> int:
    began = time.monotonic()
    counts: Counter[str] = Counter()
    broken = 0
    named = [each for each in all_trials(trials, options.only) if options.only in each.name]
    part, parts = map(int, options.part.split("/"))
    chosen = named[:: options.every][part - 1 :: parts]
    for number, trial in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)} {trial.name}", end="", flush=True)
        try:
            trials.run(trial)
        except Broken as error:
            broken += 1
            print(f"\n  BROKEN {error}\n  repeat: python -m tests.faults --only {trial.name}")
        else:
            print(" ok")
        counts[trial.scenario.name] += 1
    minutes = (time.monotonic() - began) / 60
    shown = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(f"{len(chosen)} trials in {minutes:.1f} minutes ({shown}): {broken} broke a promise")
    return 1 if broken else 0


def all_trials(trials: Trials, only: str = "") -> list[Trial]:
    """The trials of all scenarios; the calls are those of a run without faults. Text with a
    slash begins with the scenario's name."""
    name, slash, _ = only.partition("/")
    return [
        trial
        for scenario in SCENARIOS
        if not slash or scenario.name == name
        for trial in trials_of(scenario, trials.calls(scenario))
    ]


if __name__ == "__main__":
    sys.exit(main())
