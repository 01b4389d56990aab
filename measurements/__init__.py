"""What makes numbers and evidence. See ``measurements/README.md``."""
