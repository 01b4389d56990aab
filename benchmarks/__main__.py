"""``python -m benchmarks``: every benchmark, one after the other; exits with 1 when `check`,
`catalog_size` or `weights_sync` missed a goal."""

import sys

from benchmarks import (
    catalog_size,
    check,
    entrypoint,
    first_token,
    images,
    startup,
    streaming_overhead,
    weights_sync,
)

startup.main()
entrypoint.main()
images.main()
first_token.main()
streaming_overhead.main()
met = [check.main(), catalog_size.main(), weights_sync.main()]
sys.exit(0 if all(met) else 1)
