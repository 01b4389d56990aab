"""What is measured on a GPU beside ``peagle bench --here``; ``measurements/README.md`` has the
commands: memory at an engine's start, warm starts, and prefix caching with drafters.

Engines get a ``config.json`` with the real geometry of a pair (``model_catalog/configs``) and
random weights: memory and start-up are those of the real model, and nothing is downloaded.
"""
