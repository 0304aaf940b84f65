#!/usr/bin/env python3
"""Prepares the pages of docs/ as the source of a book, and checks the links of a built book.

    scripts/book.py prepare FOLDER    writes FOLDER/book.toml, its css and FOLDER/src
    scripts/book.py check FOLDER      checks the book that mdbook has built there

The source has the folders of the repository, so that links between pages work as on a forge. Other
linked files are copied, with the suffix .txt if a browser would not show them.
"""

import html.parser
import posixpath
import re
import shutil
import sys
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Code blocks and inline code, or a link outside of them: `](target)`.
CODE_OR_LINK = re.compile(r"^ *```.*?^ *```|`(?:[^`\n]|\n(?!\n))+`|\]\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)
SHOWN = {".html", ".json", ".svg", ".png"}


def rewrite(text, change):
    """Replaces the target of each link of a page by the result of `change`."""

    def replaced(match):
        target = match[1]
        if target is None or "://" in target or target.startswith(("mailto:", "#")):
            return match[0]
        return f"]({change(target)})"

    return CODE_OR_LINK.sub(replaced, text)


def prepare(folder):
    """Writes the source of the book."""
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "src"
    source.mkdir(parents=True)
    for name in ("book.toml", "book.css"):
        shutil.copy(ROOT / "docs" / name, folder)
    pages = []

    def at(page, target):
        """The path below the repository."""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target.split("#")[0]))
        if path.startswith("..") or not (ROOT / path).is_file():
            sys.exit(f"{page}: {target} leads to no file of the repository")
        return path

    def listed(target):
        pages.append(at("docs/SUMMARY.md", target))
        return pages[-1]

    summary = rewrite((ROOT / "docs/SUMMARY.md").read_text(), listed)
    (source / "SUMMARY.md").write_text(summary)
    for page in pages:

        def shown(target, page=page):
            path = at(page, target)
            if path in pages:
                return target
            ending = "" if Path(path).suffix in SHOWN else ".txt"
            copy = source / (path + ending)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, copy)
            return target + ending

        to = source / page
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(rewrite((ROOT / page).read_text(), shown))


class Anchors(html.parser.HTMLParser):
    """The links of a page of the book, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        of = dict(attributes)
        self.ids.add(of.get("id"))
        if tag == "a" and of.get("href"):
            self.links.append(of["href"])


def check(folder):
    """Reports broken links of the book."""
    # The print page contains all others, with their links.
    names = [name for name in folder.rglob("*.html") if name.name not in ("print.html", "toc.html")]
    pages = {name.resolve(): Anchors(name.read_text()) for name in names}
    count = wrong = 0
    for name, page in pages.items():
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc or name.name == "404.html":
                continue
            count += 1
            to = (name.parent / urllib.parse.unquote(url.path)).resolve() if url.path else name
            anchor = urllib.parse.unquote(url.fragment)
            if not to.is_file() or anchor and to in pages and anchor not in pages[to].ids:
                print(f"{name.relative_to(folder.resolve())}: {link}", file=sys.stderr)
                wrong += 1
    print(f"{len(pages)} pages, {count} links, of which {wrong} lead nowhere")
    sys.exit(1 if wrong or not count else 0)


{"prepare": prepare, "check": check}[sys.argv[1]](Path(sys.argv[2]))
