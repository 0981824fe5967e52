"""Labels of figures, with TeX between dollar signs, for the page and for alternative texts."""

import re
from functools import cache
from html import escape

from latex2mathml import converter

_SYMBOLS = {
    r"\sigma": "σ",
    r"\lambda": "λ",
    r"\gamma": "γ",
    r"\xi": "ξ",
    r"\mu": "μ",
    r"\epsilon": "ε",
    r"\partial": "∂",
    r"\infty": "∞",
    r"\ln": "ln",
    r"\log": "log",
    r"\pm": "±",
    r"\,": " ",
}


def label_html(text: str) -> str:
    """A label as HTML, its formulas as MathML."""
    parts = text.split("$")  # text and formulas alternate
    return "".join(escape(part) if i % 2 == 0 else mathml(part) for i, part in enumerate(parts))


@cache
def mathml(tex: str, display: str = "inline") -> str:
    """A formula as MathML."""
    return converter.convert(tex, display=display)


def label_text(text: str) -> str:
    r"""A label without markup, to be read aloud.

    >>> label_text("prompt length $L$"), label_text(r"$L=10^{6}$"), label_text(r"$\sigma^2/\ln L$")
    ('prompt length L', 'L=10^6', 'σ^2/ln L')
    """
    for name, letter in _SYMBOLS.items():
        text = text.replace(name, letter)
    return re.sub(r"[{}$]", "", text)
