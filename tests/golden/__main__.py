"""Write the recordings again from the code at hand: all, or those that are named."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.recordings import FOLDER, recorders, written


def main(names: list[str]) -> None:
    """Record ``names``, such as ``aws_calls``; without any, all recordings."""
    for name in names or recorders():
        with TemporaryDirectory() as folder:
            (FOLDER / f"{name}.json").write_bytes(written(name, Path(folder)))
        print(f"wrote {name}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
