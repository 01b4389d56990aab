"""``python -m measurements``: every measurement of this machine, one after the other.

Exits with 1 if entrypoint, images, crash, check, bench_load or weights_sync misses
its goal.
"""

import sys

from measurements import (
    bench_load,
    check,
    crash,
    entrypoint,
    first_token,
    images,
    startup,
    streaming_overhead,
    weights_sync,
)

startup.main()
met = [entrypoint.main(), images.main(), crash.main()]
first_token.main()
streaming_overhead.main()
met += [check.main(), bench_load.main(), weights_sync.main()]
sys.exit(0 if all(met) else 1)
