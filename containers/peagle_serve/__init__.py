"""The container's entrypoint: from environment variables to a running vLLM, and to its end.

    contract                variables, paths, request attributes, settings
    json_reader             bounded reader of files and JSON, shared with the toolkit
    environment             variables as vLLM's arguments; which ones the installed vLLM has
    checks                  is the environment valid? Is the image for this pair?
    checkpoint, heads       parsers of weights and heads, shared with the toolkit
    weights                 which weights; are they those of the plan?
    warm                    compile caches of an identical engine
    command, supervisor     everything before the start of vLLM; vLLM as a child
    middleware              in vLLM's server: readiness, draining, counters, compile caches
    logs, crash             the log without secrets; why an engine ended
    plugins                 what vLLM's CPU build loads of ours

Standard library only, Python 3.10 or later: images bring nothing but vLLM. The same code runs in an
image, in local mode and in the sandbox.
"""
