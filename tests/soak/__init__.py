"""Load for hours on the sandbox and the container, while they are updated, drained and killed."""
