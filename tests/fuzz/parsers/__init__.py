"""The list of fuzzed parsers: of what comes from outside. A new one belongs into its area."""

from tests.fuzz.parser import Parser
from tests.fuzz.parsers import catalog, checkpoints, commands, container, engines, project, warm

MODULES = (container, warm, checkpoints, catalog, commands, engines, project)
PARSERS: dict[str, Parser] = {
    parser.name: parser for module in MODULES for parser in module.PARSERS
}
