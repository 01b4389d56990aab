"""The container's entrypoint: from environment variables to a running vLLM, and to its end.

    environment variables -> names, checks     is the environment what its author meant?
                          -> model, folder     which weights, and are they all there?
                          -> built_for, pair   is the image for this pair, do head and target fit?
                          -> environment       vLLM's arguments, as in AWS's own container
                          -> warm              what another engine has compiled, if there is some
                          -> command           one log line, then
                          -> supervisor        the engine as a child: its log, its crash, its end

vLLM itself loads ``counters`` (its speculation counters through the one route that SageMaker
offers), ``warm.route`` (what it has compiled) and ``lifecycle`` (readiness, draining). Standard
library only, and Python 3.10 or later: it runs in images that bring nothing but vLLM. The same code
runs in the image, in local mode and in the sandbox.
"""
