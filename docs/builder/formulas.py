r"""Formulas of docstrings, which are plain text between dollars, as TeX.

Docstrings are read in terminals more often than on the site, so they write
$E |T_L - T|^2 <= e^{u'Gu}/L$ and not \mathbb{E}. A formula with a backslash is TeX already.
"""

import html
import re

_GREEK = """alpha beta gamma delta zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi psi
omega Gamma Delta Theta Lambda Sigma Phi Psi Omega"""
_NAMES = {name: f"\\{name}" for name in _GREEK.split()} | {
    "eps": r"\varepsilon",
    "Sig": r"\Sigma",
    "infinity": r"\infty",
    "inf": r"\infty",
    "sum": r"\sum",
    "prod": r"\prod",
    "int": r"\int",
    "grad": r"\nabla",
    "hess": r"\nabla^2",
    "E": r"\mathbb{E}\,",
}
_FUNCTIONS = ("log", "ln", "exp", "cosh", "sinh", "tanh", "max", "min", "det")
_OPERATORS = ("tr", "Cov", "Var", "softmax", "diag")
_SIGNS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "->": r"\to ", "+-": r"\pm ", "~": r"\sim "}
_MATRIX = re.compile(r"\[\[([^][]*), ([^][]*)\], \[([^][]*), ([^][]*)\]\]")  # two by two
_OPEN, _CLOSE = r'(<(?:span|div) class="arithmatex">\\[(\[])', r"(\\[)\]]</(?:span|div)>)"
_MARKED = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)


def typeset(page: str) -> str:
    """A page of HTML with the plain formulas that Markdown marked turned into TeX."""
    return _MARKED.sub(lambda m: m[1] + html.escape(tex(html.unescape(m[2])), False) + m[3], page)


def tex(plain: str) -> str:
    r"""TeX of a formula in plain text.

    >>> tex("E |T_L - T|^2 <= e^<u,x> P_22")
    '\\mathbb{E}\\, |T_L - T|^2 \\le  e^{\\langle u,x\\rangle } P_{22}'
    """
    if "\\" in plain:
        return plain
    text = re.sub(r"\^<([^<>]*)>", r"^{<\1>}", plain)
    text = re.sub(r"<([^<>=]*,[^<>=]*)>", r"\\langle \1\\rangle ", text)
    text = re.sub(r"\^\(([^()]*)\)", r"^{\1}", text)
    text = re.sub(r"\^(-?\d[\d.]*)", r"^{\1}", text)
    text = re.sub(r"sqrt\(((?:[^()]|\([^()]*\))*)\)", r"\\sqrt{\1}", text)
    for sign, command in _SIGNS.items():
        text = text.replace(sign, command)
    text = re.sub(r"_(\w{2,})", lambda m: f"_{{{m[1]}}}", text)
    text = re.sub(r"(?<![\\A-Za-z])[A-Za-z]+", lambda word: _word(word[0]), text)
    text = _MATRIX.sub(r"\\begin{pmatrix} \1 & \2 \\\\ \3 & \4 \\end{pmatrix}", text)
    return re.sub(r" {3,}", r" \\quad ", text).strip()


def _word(word: str) -> str:
    if word in _NAMES:
        return f"{_NAMES[word]} "
    if word in _FUNCTIONS:
        return f"\\{word} "
    if word in _OPERATORS:
        return f"\\operatorname{{{word}}}"
    if (len(word) > 3 and word.islower()) or word in ("for", "and", "iid"):
        return f"\\text{{ {word} }}"
    return word
