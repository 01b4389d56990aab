"""Random walks: ``python -m tests.lifecycle [-n WALKS] [--first SEED] [--minutes M]``.

A walk that violates an invariant is saved in ``found``, where the suite repeats it; the exit code
is then 1.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.calls import shared_models
from tests.faults.commands import Broken
from tests.lifecycle.steps import Walk, random_walk
from tests.lifecycle.walk import run
from tests.lifecycle.world import World
from tests.sandbox.clients import shared_clients
from tests.sandbox.sandboxes import Sandbox, fake_engine, started

FOUND = Path(__file__).with_name("found")


def main() -> int:
    options = _options()
    with TemporaryDirectory() as folder:
        engine = fake_engine(Path(folder) / "engine")
        with (
            shared_models(),
            shared_clients(),
            started(Sandbox(Path(folder) / "home", engine)) as sandbox,
        ):
            world = World(sandbox)
            if options.only:
                return _repeat(world, options.only)
            return _run(world, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lifecycle", description=__doc__)
    parser.add_argument("-n", type=int, default=100, metavar="WALKS")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first walk")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--only", type=Path, metavar="FILE", help="repeat a saved walk")
    return parser.parse_args()


def _repeat(world: World, file: Path) -> int:
    try:
        run(world, Walk.read(file.read_text()))
    except Broken as error:
        print(f"BROKEN {error}")
        return 1
    return 0


def _run(world: World, options: argparse.Namespace) -> int:
    began = time.monotonic()
    met: Counter[str] = Counter()
    walks = broken = 0
    for seed in range(options.first, options.first + options.n):
        if time.monotonic() - began > 60 * options.minutes:
            break
        walk = random_walk(seed)
        print(f"{seed} {walk.text}", end="", flush=True)
        try:
            run(world, walk)
        except Broken as error:
            broken += 1
            print(f"\n  BROKEN {error}", flush=True)
            file = FOUND / f"walk_{seed}.json"
            file.write_text(replace(walk, broken=str(error)).document())
            again = f"python -m tests.lifecycle --only {file.relative_to(Path.cwd())}"
            print(f"  saved; repeat: {again}", flush=True)
        else:
            print(" ok", flush=True)
        walks += 1
        met.update(step.action for step in walk.steps)
    minutes = (time.monotonic() - began) / 60
    shown = ", ".join(f"{action} {count}" for action, count in met.most_common())
    print(
        f"{walks} walks, {met.total()} steps in {minutes:.1f} minutes ({shown}): "
        f"{broken} violated an invariant"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
