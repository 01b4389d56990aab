"""Warm starts: compile caches of one engine, restored for the next identical one.

Most of a cold start is compilation. With ``PEAGLE_WARM=collect`` an engine compiles into empty
folders and offers them as an **artifact**: ``<key>.tar.gz`` and its manifest ``<key>.json``, stored
in the folder ``warm/`` next to the weights.

    cache_key           what compiled code depends on, and the key
    caches              the folders, and the variables that point the engine to them
    manifest, archive   reading and writing artifacts, with every check
    prepare             restore or collect, before the engine starts
    route               the artifact through ``/invocations``

An artifact is code that the engine runs, so the container restores only archives whose SHA-256 is
in ``PEAGLE_WARM_SHA256``. The checks here detect damage and prevent writes outside of the cache;
they do not detect malicious code.
"""
