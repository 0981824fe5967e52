"""The form of every error of this package. Imports nothing, so that what must start fast can use it."""


def message(rule: str, received: str, fix: str) -> str:
    """The form of every error of this package."""
    return f"{rule}; received {received}. To fix: {fix}."
