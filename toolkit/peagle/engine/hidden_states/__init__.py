"""What runs in other Pythons, with this folder on their path: the engine's connector that saves
hidden states on a CPU, and the trainer's command line with the check of those states."""

from pathlib import Path

PLUGIN = Path(__file__).resolve().parent
"""The folder, for ``PYTHONPATH``."""

TRAINER = PLUGIN / "peagle_trainer.py"
CHECK = PLUGIN / "peagle_states.py"
EVENTS_VARIABLE = "PEAGLE_TRAINING_EVENTS"
"""Of the trainer: the file to which it appends events."""

CPU_CONNECTOR, CPU_CONNECTOR_MODULE = "CpuHiddenStatesConnector", "peagle_hidden_states"
