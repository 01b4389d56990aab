"""Random walks: commands with random faults, in a random valid state of the account; see walk."""
