"""The container's entrypoint: from environment variables to a running vLLM, and to its end.

    contract                             variables, paths, request attributes, settings
    variable_names, environment_checks   is the environment valid? Is the image for this pair?
    weights, folder, mounted_weights     which weights; are they complete, and those of the plan?
    head_checks                          do head and target fit?
    json_reader                          bounded reader of files and JSON, shared with the toolkit
    safetensors, heads                   parsers, shared with the toolkit
    environment                          vLLM's arguments, as in AWS's container
    warm                                 compile caches of an identical engine
    command, supervisor, engine          start vLLM as a child: its secrets, log, crash, end
    plugins                              what vLLM's CPU build loads of ours

vLLM loads three middlewares: ``counters`` (speculation counters through ``/invocations``, the one
route that SageMaker offers), ``warm.route`` (compile caches) and ``lifecycle`` (readiness,
draining). Standard library only, Python 3.10 or later: images bring nothing but vLLM. The same code
runs in an image, in local mode and in the sandbox.
"""
