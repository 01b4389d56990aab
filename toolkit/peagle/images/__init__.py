"""Container images of plans on this machine: build and push. Uses Docker, not AWS."""
