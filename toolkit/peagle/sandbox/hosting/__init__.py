"""From what an endpoint configuration says to an engine that answers /ping."""
