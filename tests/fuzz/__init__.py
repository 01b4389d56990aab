"""Random, structured and hostile inputs for everything that parses text from outside.

``parsers`` lists what is fuzzed, ``inputs`` makes the inputs, ``measure`` runs one and compares it
with the limits, ``reach`` finds the functions of the code that parse. ``python -m tests.fuzz`` is
the long run; ``corpus`` holds the inputs that once failed, and every run begins with them.
"""
