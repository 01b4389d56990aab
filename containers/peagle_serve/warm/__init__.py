"""Warm starts: what one engine compiled, for the next one that is the same.

Most of a cold start is compilation. With ``PEAGLE_WARM=collect`` an engine compiles into empty
folders and offers them as an **artefact**: ``<key>.tar.gz``, and ``<key>.json``, its manifest. It
lies in ``warm/`` beside the weights, and is there when they are.

    subject, device, software   what the compiled code depends on, and the key made of it
    caches                      which folders, and the variables that lead the engine to them
    manifest                    what is said of an artefact, read with suspicion
    unpack, restore             into a folder beside, checked, then renamed: never half there
    readahead                   meanwhile the weights are read into the page cache
    pack, route                 what was compiled, as an artefact, through ``/invocations``
    prepare                     which of all that is to be done now

An artefact is code: whoever may write to its folder decides what the engine runs. So it belongs
where the weights are, under the same permissions, and nowhere else. What is checked here guards
against damage and against writing outside of the cache, not against a stranger's code.
"""
