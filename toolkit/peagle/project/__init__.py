"""The project file ``peagle.yaml``: the endpoints of one repository, and their environments."""
