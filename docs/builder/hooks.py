"""Hooks of mkdocs: pages that are made when the site is built, and how Markdown is read."""

import logging
import re
from pathlib import Path
from typing import Any

import api
import formulas
import gallery
from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]
from plain_text import PlainText

import explorer

ROOT = Path(__file__).parents[2]
EXPLORER = "explorer_page.html"
WIDE = "theory_map.md"  # a page with a table of five columns


def on_config(config: Any) -> Any:
    """Add our rules of Markdown, for pages and for docstrings."""
    config.markdown_extensions.append(PlainText())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add changelog, contributing, the API reference, the explorer and the gallery."""
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = (
            (ROOT / f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](")
        )  # links of the root
        files.append(File.generated(config, f"{name.lower()}.md", content=text))
    for name, text in api.pages().items():
        files.append(File.generated(config, f"api/{name}.md", content=text))
    files.append(File.generated(config, EXPLORER, content=explorer.page()))
    logging.getLogger("mkdocs").info("Running the examples of the gallery")
    found = gallery.examples(_names(config))
    files.append(File.generated(config, "gallery/index.md", content=gallery.index(found)))
    for example in found:
        page = f"gallery/{example.name}.md"
        files.append(File.generated(config, page, content=example.page()))
        picture = f"gallery/{example.figure.name}"
        files.append(File.generated(config, picture, abs_src_path=str(example.figure)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Link to the explorer, and let links to files show their titles."""

    def titled(link: re.Match) -> str:
        file = files.get_file_from_path(link[1])
        title = re.search(r"^# (.+)", file.content_string, re.MULTILINE) if file else None
        return f"[{title[1]}]({link[2]})" if title else link[0]

    if page.file.src_path == WIDE:
        page.meta["hide"] = ["toc"]  # its only heading
    if page.file.src_path == "explorer.md":
        title, text = markdown.split("\n", 1)
        links = f"[Open it]({EXPLORER}){{ .md-button }} "
        links += f"[Download it]({EXPLORER}){{ .md-button download=explorer.html }}"
        markdown = f"{title}\n\n{links}\n{text}"
    return re.sub(r"\[([\w/]+\.md)\]\((\1(?:#[\w-]+)?)\)", titled, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Typeset the formulas of docstrings; let long paths in tables break after a slash."""
    if page.file.src_path == WIDE:
        return re.sub(
            r"<code>([^<\s]+/[^<\s]+)</code>",
            lambda path: f"<code>{path[1].replace('/', '/<wbr>')}</code>",
            html,
        )
    return formulas.typeset(html) if page.file.src_path.startswith("api/") else html


def _names(config: Any) -> list[str]:
    """Examples in the order of the navigation."""
    (pages,) = (section["Gallery"] for section in config.nav if "Gallery" in section)
    return [Path(page).stem for page in pages if page != "gallery/index.md"]
