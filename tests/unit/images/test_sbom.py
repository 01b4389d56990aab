"""The bill of materials of the wheel, as CycloneDX."""

import json
from pathlib import Path

from tools.wheel_sbom import wheel_sbom

REQUIREMENTS = Path(__file__).parents[3] / "requirements"
AT_A_TIME = 20
"""Components in one document that the schema checks: it compares each with all others."""


def assert_valid(text: str) -> None:
    """The document and each of its components follow CycloneDX' schema; all are different."""
    # Two seconds to import, which every worker would wait for before its first test.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator, document = JsonStrictValidator(SchemaVersion.V1_6), json.loads(text)
    components = document["components"]
    assert len({json.dumps(each, sort_keys=True) for each in components}) == len(components)
    for first in range(0, max(len(components), 1), AT_A_TIME):
        part = {**document, "components": components[first : first + AT_A_TIME]}
        assert validator.validate_str(json.dumps(part)) is None


def test_the_sbom_in_the_wheel_lists_what_the_lock_has() -> None:
    lock = (REQUIREMENTS / "core.txt").read_text()
    text = wheel_sbom(lock)
    assert text == (REQUIREMENTS / "core.cdx.json").read_text(), "run make lock"
    assert_valid(text)
    components = json.loads(text)["components"]
    locked = [line.partition("==")[0] for line in lock.splitlines() if line[:1].isalnum()]
    assert [each["name"] for each in components] == locked
    hashes = [file for each in components for file in each["externalReferences"][0]["hashes"]]
    assert len(hashes) == lock.count("--hash=sha256:")
