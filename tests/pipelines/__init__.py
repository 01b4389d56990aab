"""The generated pipelines, step by step: on this machine, against the sandbox."""
