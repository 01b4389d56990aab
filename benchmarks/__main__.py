"""``python -m benchmarks``: every benchmark, one after the other."""

from benchmarks import first_token, startup

startup.main()
first_token.main()
