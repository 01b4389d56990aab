"""The container's entrypoint: from environment variables to a running vLLM.

    environment variables -> names, checks     is the environment what its author meant?
                          -> model             which weights, and are they there?
                          -> environment       vLLM's arguments, as in AWS's own container
                          -> command           one log line, then vLLM takes this process's place

``counters`` is loaded by vLLM itself, and lets its speculation counters be read through the one
route that SageMaker offers. Standard library only, and Python 3.10 or later: it runs in images
that bring nothing but vLLM. The same code runs in the image, in local mode and in the sandbox.
"""
