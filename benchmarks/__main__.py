"""``python -m benchmarks``: every benchmark, one after the other."""

from benchmarks import catalog_size, check, first_token, startup, streaming_overhead

startup.main()
first_token.main()
streaming_overhead.main()
check.main()
catalog_size.main()
