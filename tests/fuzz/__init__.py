"""Random, structured and hostile inputs for everything that parses text from outside.

``parsers`` lists what is fuzzed, ``inputs`` makes the inputs, ``parser`` runs one within limits;
``corpus`` holds the inputs that once failed, with which every run begins.
"""
