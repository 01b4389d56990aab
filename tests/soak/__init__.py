"""The parts of ``benchmarks.soak``: an engine for load, clients, targets, and memory."""
