"""Invoking an endpoint: the request to its engine, and the answer back, chunk by chunk."""
