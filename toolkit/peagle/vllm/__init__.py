"""Facts about vLLM by version: defaults, GPUs, dtypes, environment and argv."""
