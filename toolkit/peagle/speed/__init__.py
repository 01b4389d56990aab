"""How fast an engine is: measured rows, the performance model, and the verdict. Pure."""
