"""The command line. Most of what a command makes it needs until its end, so the garbage collector
looks less often: it takes a sixth of the time in which a command starts."""

import gc

gc.set_threshold(50_000, 20, 20)
