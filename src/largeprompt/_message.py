"""The form of error messages. Imports nothing, so that modules that must start fast can use it."""


def message(rule: str, received: str, fix: str = "") -> str:
    """Message that names the rule, what was received, and a fix where that says something new."""
    return f"{rule}; received {received}." + (f" To fix: {fix}." if fix else "")


def error(rule: str, received: str, fix: str = "") -> ValueError:
    """`ValueError` with the message that `message` makes."""
    return ValueError(message(rule, received, fix))
