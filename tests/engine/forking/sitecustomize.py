"""With this folder on PYTHONPATH vLLM's server begins as a fork: see forked_server.py."""

import sys

if "vllm.entrypoints.openai.api_server" in sys.orig_argv[1:4] or (
    "".join(sys.orig_argv[1:2]).endswith(("/asking.py", "/drafting.py"))
):
    from importlib import import_module

    import_module("forked_server").run()
