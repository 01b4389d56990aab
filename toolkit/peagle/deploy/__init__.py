"""Deploy a plan to SageMaker, update it, prove it and remove it. Desired is compared with read.

``state`` is what an endpoint serves and what a record keeps of it, ``revisions`` which of them
serves; ``discover`` reads the same from the account. ``resources`` has one class per kind of
resource. ``preflight`` finds the change that a plan needs, and ``apply`` makes it.
"""
