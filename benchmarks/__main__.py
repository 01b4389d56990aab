"""``python -m benchmarks``: every benchmark, one after the other; exits with 1 when `check` or
`catalog_size` missed a goal."""

import sys

from benchmarks import catalog_size, check, first_token, startup, streaming_overhead

startup.main()
first_token.main()
streaming_overhead.main()
met = [check.main(), catalog_size.main()]
sys.exit(0 if all(met) else 1)
