"""Measure speed, latency, acceptance and cost of an endpoint under load."""
