"""Markdown as docstrings and documents write it: doctests are code, <u, x> is no HTML tag."""

from markdown import Extension, Markdown
from markdown.inlinepatterns import HtmlInlineProcessor
from markdown.preprocessors import Preprocessor

_TAG = r"(</?[a-z][a-z0-9-]*(?:\s[^<>]*)?/?>|<!--.*?-->)"


class Doctests(Preprocessor):
    """Put lines from `>>>` to the next blank line into a fenced block."""

    def run(self, lines: list[str]) -> list[str]:
        found, fenced, inside = [], False, False
        for line in [*lines, ""]:
            fenced ^= line.lstrip().startswith("```")
            if not (fenced or inside) and line.startswith(">>> "):
                inside = True
                found += ["", "```pycon"]
            elif inside and not line.strip():
                inside = False
                found.append("```")
            found.append(line)
        return found


class PlainText(Extension):
    """The rules above."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(Doctests(md), "doctests", 29)
        md.inlinePatterns.register(HtmlInlineProcessor(_TAG, md), "html", 90)
