"""Texts that the study of real transformers reads: frozen copies, written for this project.

Each has at least 768 tokens for SmolLM2. The names are those of the coordinates of prompts.
"""

from pathlib import Path

NAMES = ("story", "code", "essay", "manual", "more code", "news")
_FOLDER = Path(__file__).parent / "texts"  # part of the version of the study


def text(name: str) -> str:
    """The text of this name."""
    return (_FOLDER / f"{name.replace(' ', '_')}.txt").read_text(encoding="utf-8")
