"""The rules, one file for each subject. A function with ``@rule`` in a file here is a rule."""
