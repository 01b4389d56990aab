"""A CloudFormation template as the stack that it makes: parameters and conditions resolved.

References to resources stay, and so do those to what the account decides.
"""

import re
from collections.abc import Mapping
from typing import Any

from tests.unit.rendering.plans import BUCKET, ROLE

GIVEN = {"ExecutionRoleArn": ROLE, "ModelBucket": BUCKET}
_PSEUDO = {"AWS::StackName": "stack"}
_NOTHING = object()


def stack_of(template: Mapping[str, Any], **choices: Any) -> dict[str, Any]:
    """The resources that the stack has, by their logical IDs."""
    conditions = template.get("Conditions", {})
    resolver = Resolver(values_of(template, choices), conditions)
    return {
        name: resolver.resolved(resource)
        for name, resource in template["Resources"].items()
        if "Condition" not in resource or resolver.holds(conditions[resource["Condition"]])
    }


def values_of(template: Mapping[str, Any], choices: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the given values and the defaults of the others. Raises AssertionError
    for a value that the parameter does not allow."""
    values: dict[str, Any] = dict(_PSEUDO)
    for name, parameter in template.get("Parameters", {}).items():
        value = choices.get(name, parameter.get("Default", GIVEN.get(name)))
        if value is None:
            continue
        assert re.fullmatch(parameter.get("AllowedPattern", ".*"), str(value)), name
        assert value in parameter.get("AllowedValues", [value]), name
        values[name] = value
    assert set(choices) <= set(values)
    return values


class Resolver:
    """Resolves intrinsic functions, with the values of parameters."""

    def __init__(self, values: Mapping[str, Any], conditions: Mapping[str, Any]) -> None:
        self._values, self._conditions = values, conditions

    def holds(self, condition: Mapping[str, Any]) -> bool:
        """Whether a condition holds."""
        ((function, value),) = condition.items()
        if function == "Fn::Not":
            return not self.holds(value[0])
        assert function == "Fn::Equals"
        first, second = map(self.resolved, value)
        return str(first) == str(second)

    def resolved(self, value: Any) -> Any:
        """A part of the template."""
        if isinstance(value, list):
            return [self.resolved(item) for item in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((name, argument),) = value.items()
            if name == "Ref" or name.startswith("Fn::"):
                return self._called(name, argument)
        items = {key: self.resolved(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item is not _NOTHING}

    def _called(self, function: str, argument: Any) -> Any:
        if function == "Ref":
            return _NOTHING if argument == "AWS::NoValue" else self._value(argument)
        if function == "Fn::If":
            condition, true, false = argument
            return self.resolved(true if self.holds(self._conditions[condition]) else false)
        if function == "Fn::Sub":
            return self._substituted(argument)
        if function == "Fn::Join":
            parts = self.resolved(argument[1])
            if all(isinstance(part, str) for part in parts):
                return argument[0].join(parts)
        return {function: argument}

    def _value(self, name: str) -> Any:
        return self._values.get(name, {"Ref": name})

    def _substituted(self, argument: Any) -> Any:
        """The text, or the function with the references that are left."""
        text, variables = argument if isinstance(argument, list) else (argument, {})
        named = {**self._values, **{key: self.resolved(value) for key, value in variables.items()}}
        for name, value in named.items():
            text = text.replace(f"${{{name}}}", str(value))
        return {"Fn::Sub": text} if re.search(r"\$\{[^!]", text) else text.replace("${!", "${")
