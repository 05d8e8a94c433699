"""Check every link within the built site: `python docs/check_site.py build/site`.

Sphinx checks the links of the sources. This program checks the result: each link to a file leads to a file, and each
anchor exists on its page.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of an HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the links and the anchors of a tag."""
        for name, value in attrs:
            if value and name in {"href", "src"} and (tag, name) != ("base", "href"):
                self.links.add(value)
            elif value and name in {"id", "name"}:
                self.anchors.add(value)


def broken(folder: Path) -> list[str]:
    """Return each broken link in the HTML pages of `folder`, with its page."""
    pages = {path: Page(path) for path in sorted(folder.resolve().rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file() or (target in pages and unquote(parts.fragment) not in pages[target].anchors):
                found.append(f"{path.relative_to(folder.resolve())}: {link}")
    return found


def main(folder: str) -> int:
    """Print each broken link. Return 1 if there is one."""
    found = broken(Path(folder))
    print("\n".join(found) if found else "every link within the site has a target")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
