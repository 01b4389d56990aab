"""``python -m benchmarks``: every benchmark, one after the other."""

from benchmarks import first_token, startup, streaming_overhead

startup.main()
first_token.main()
streaming_overhead.main()
