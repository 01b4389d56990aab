"""The project file ``peagle.yaml``: the endpoints of one repository, and their environments.

Its keys are the names of the command line's options, which the caller passes in: the file has no
options of its own. ``model`` describes the file, ``reading`` finds and reads it, ``choosing``
merges what it says about one endpoint in one environment.
"""
