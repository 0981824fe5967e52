"""Formulas in plain sentences, such as "|T_L - T|^2 at L = 1e12", as HTML."""

import re
from collections.abc import Callable
from html import escape

_GREEK = {
    "alpha": "α",
    "beta": "β",
    "eps": "ε",
    "gamma": "γ",
    "kappa": "κ",
    "lambda": "λ",
    "mu": "μ",
    "rho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "theta": "θ",
    "xi": "ξ",
    "Sig": "Σ",
    "Theta": "Θ",
    "inf": "∞",
    "grad": "∇",
}
_SIGNS = {"sum": "∑", "sqrt": "√"}  # words, unless an index or a bracket follows
_UPRIGHT = {"∞", "∑", "∇", "√", "Σ", "Θ", "Γ"}
_OPERATORS = {"!=": "≠", ">=": "≥", "<=": "≤", "+-": "±", " - ": " − "}
_NESTED = r"\((?:[^()]|\([^()]*\))*\)"  # parentheses, one level deep inside
_TOKEN = re.compile(
    rf"""
    (?P<number>(?<![\w.])\d+(?:\.\d+)?e[+-]?\d+(?![\w.]\w))
  | (?P<raised>\^(?:{{[^}}]*}}|{_NESTED}|-?\w+(?:/\d+)?))
  | (?P<lowered>_(?:{{[^}}]*}}|[A-Za-z0-9]+))
  | (?P<greek>(?<![A-Za-z])(?:{"|".join(_GREEK)}|sum(?=_)|sqrt(?=\())(?![A-Za-z]))
  | (?P<product>(?<![\w'])(?=[VGUmzu]*[VGU])[VGUmzu]{{2,4}}'?(?![\w]))
  | (?P<letter>(?<![A-Za-z_.'’])(?<!\w-)
      (?:A(?!\ [a-z]{{2}})|a(?=_)|[B-Zb-zα-ω])'?(?![A-Za-z0-9’]|\.\w))
  | (?P<operator>!=|>=|<=|\+-|\ -\ )
  | (?P<minus>(?<![\w)])-(?=[\w(]))
    """,
    re.VERBOSE,
)


def typeset(text: str) -> str:
    """A sentence as HTML: letters of formulas in italics, powers raised, indices lowered.

    Words, and formulas that are typeset already, stay as they are.

    >>> typeset("one c_1 for all sigma, L = 2 to 1e12")
    'one <var>c</var><sub>1</sub> for all <var>σ</var>, <var>L</var> = 2 to 10<sup>12</sup>'
    """
    found, end = [], 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        found += [escape(text[end : match.start()], quote=False), _AS_HTML[kind](match[0])]
        end = match.end()
    return "".join([*found, escape(text[end:], quote=False)])


def _number(text: str) -> str:
    """A number such as 3e-05: powers of ten from 10,000 on and below 0.001."""
    mantissa, _, digits = text.partition("e")
    exponent = int(digits)
    if -3 <= exponent <= 3:
        return f"{float(text):g}"
    power = f"10<sup>{str(exponent).replace('-', '−')}</sup>"
    return power if float(mantissa) == 1 else f"{mantissa}·{power}"


def _inner(text: str) -> str:
    """Typeset an exponent or index; its outer brackets are left out."""
    if text[0] + text[-1] in ("{}", "()"):
        text = text[1:-1]
    return typeset(text)


def _letters(text: str) -> str:
    """Variables in italics, capital Greek letters and signs upright; G stands for Γ."""
    names = text.rstrip("'")
    prime = "′" * (len(text) - len(names))
    names = ({**_GREEK, **_SIGNS}).get(names, names.replace("G", "Γ"))
    shown = [name if name in _UPRIGHT else f"<var>{name}</var>" for name in names]
    return "".join(shown) + prime


_AS_HTML: dict[str, Callable[[str], str]] = {
    "number": _number,
    "raised": lambda text: f"<sup>{_inner(text[1:])}</sup>",
    "lowered": lambda text: f"<sub>{_inner(text[1:])}</sub>",
    "greek": _letters,
    "product": _letters,
    "letter": _letters,
    "operator": lambda text: escape(_OPERATORS[text]),
    "minus": lambda text: "−",
}
