"""Deploy a plan to SageMaker, update it, prove it and remove it."""
