"""``peagle``, also as ``python -m peagle.cli``."""

import sys


def start() -> None:
    """Run the command line; Ctrl-C while its modules load shows no traceback either."""
    try:
        from peagle.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    start()
