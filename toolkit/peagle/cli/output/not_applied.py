"""What a rehearsal in the sandbox has not tested."""

from __future__ import annotations

from peagle import api
from peagle.cli.output.console import print_status


def show_not_applied(name: str, region: str) -> list[str]:
    """Show on stderr the engine arguments that the sandbox's engine did not get; return them."""
    endpoints = api.sandbox_status().endpoints
    found = [one for one in endpoints if (one.name, one.region) == (name, region)]
    missing = [text for endpoint in found for text in endpoint.not_applied]
    if missing:
        print_status("The sandbox's engine did not get these arguments, so nothing tested them:")
    for text in missing:
        print_status(f"  {text}")
    return missing
