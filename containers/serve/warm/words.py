"""What the entrypoint tells the engine's middleware, where something is collected."""

SUBJECT_VARIABLE = "PEAGLE_WARM_SUBJECT"
"""The subject, as canonical JSON."""

PLACE_VARIABLE = "PEAGLE_WARM_PLACE"
"""The folder that the caches are in; its name is the key."""
