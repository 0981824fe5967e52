"""The form of error messages. Imports nothing, so that modules that must start fast can use it."""


def message(rule: str, received: str, fix: str) -> str:
    """Message that names the rule, what was received, and a fix."""
    return f"{rule}; received {received}. To fix: {fix}."
