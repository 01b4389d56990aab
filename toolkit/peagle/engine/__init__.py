"""Run a Plan on this machine as a process or in a container, without AWS."""
