"""What the site adds to the pages of docs/: pages from other folders, diagrams as pictures, the HTTP reference.

mkdocs calls the functions `on_…` by their names while it builds (mkdocs.yml). The pages are written for a reader of the
repository, where every link to a file works. On the site, a link to a page that the site has leads there, and a link to
another file of the repository becomes the file's name. A link to what does not exist fails the build.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import subprocess
import sys
from functools import partial
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import mermaidx
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

from openapi import reference

ROOT = Path(__file__).resolve().parent.parent.parent
DIAGRAMS = ROOT / ".cache" / "diagrams"

PAGES = {
    "README.md": "start.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "vulnerabilities.md",
    "CHANGELOG.md": "changes.md",
    "charts/fairlead/README.md": "chart.md",
    "k8s/README.md": "manifests.md",
    "gateway/fairlead/mock/vectors/README.md": "vectors.md",
}
"""Pages of the site that are not in docs/: path in the repository → path on the site."""

API = "fairlead.app.api.openapi"

FENCE = re.compile(r"(?ms)^(```|~~~).*?^\1[ ]*$")
MERMAID = re.compile(r"(?ms)^```mermaid\n(.*?)^```[ ]*$")
NESTED = re.compile(r"(?m)^ {1,3}(?:[-*]|\d+\.) .*|(?<=\n\n) {1,3}\S.*")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> None:
    config.nav = _expanded(config.nav)


def _expanded(nav: Any) -> Any:
    """`nav` with each `folder/*` replaced by the pages of that folder, but its README."""
    if isinstance(nav, dict):
        return {title: _expanded(part) for title, part in nav.items()}
    if not isinstance(nav, list):
        return nav
    parts = []
    for part in nav:
        if isinstance(part, str) and part.endswith("/*"):
            folder = ROOT / "docs" / part.removesuffix("/*")
            parts += [f"{folder.name}/{page.name}" for page in sorted(folder.glob("*.md")) if page.stem != "README"]
        else:
            parts.append(_expanded(part))
    return parts


def on_files(files: Files, config: MkDocsConfig) -> None:
    for source, path in PAGES.items():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / source)))
    document = _api()
    files.append(File.generated(config, "reference/http.md", content=reference(document)))
    files.append(File.generated(config, "reference/openapi.json", content=document))


def _api() -> bytes:
    """The OpenAPI document, asked of the gateway's own environment."""
    code = f"import sys; from {API} import document; sys.stdout.buffer.write(document())"
    command = [str(ROOT / ".venv" / "bin" / "python"), "-I", "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    if done.returncode:
        raise PluginError(f"the OpenAPI document of {API} cannot be made:\n{done.stderr.decode()}")
    return done.stdout


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = MERMAID.sub(partial(_diagram, page, config, files), markdown)
    if nested := NESTED.search(FENCE.sub("", markdown)):
        reason = "would not be part of the list above it: indent it by four spaces"
        raise PluginError(f"{page.file.src_uri}: this {reason}:\n{nested.group()}")
    linked, begin = [], 0
    for fence in FENCE.finditer(markdown):
        linked += [LINK.sub(partial(_link, page), markdown[begin : fence.start()]), fence.group()]
        begin = fence.end()
    linked.append(LINK.sub(partial(_link, page), markdown[begin:]))
    return "".join(linked)


def _link(page: Page, match: re.Match[str]) -> str:
    text, target = match.groups()
    path, _, anchor = target.partition("#")
    if "://" in target or not path:
        return match.group()
    here = next((source for source, name in PAGES.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")
    there = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    if there in PAGES:
        found = PAGES[there]
    elif there.startswith("docs/"):
        found = there.removeprefix("docs/")
        if (ROOT / there).is_dir():
            found += "/README.md"
    elif (ROOT / there).exists():
        return text if text.startswith("`") else f"{text} (`{there}`)"
    else:
        return match.group()  # mkdocs reports it
    relative = posixpath.relpath(found, posixpath.dirname(page.file.src_uri) or ".")
    return f"[{text}]({relative}{'#' * bool(anchor)}{anchor})"


def _diagram(page: Page, config: MkDocsConfig, files: Files, match: re.Match[str]) -> str:
    """The picture of a diagram, drawn now: a browser would need 3 MB of scripts for it, and those from another host."""
    source = match.group(1)
    drawn = DIAGRAMS / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.svg"
    if not drawn.exists():
        try:
            svg = mermaidx.render(source).svg()
        except Exception as e:
            raise PluginError(f"{page.file.src_uri}: this diagram cannot be drawn: {e}\n{source}") from e
        DIAGRAMS.mkdir(parents=True, exist_ok=True)
        drawn.write_text(svg)
    box = re.search(r'viewBox="\S+ \S+ (\S+) ', drawn.read_text())
    if box is None:
        raise PluginError(f"{page.file.src_uri}: the picture of this diagram has no size\n{source}")
    width = round(float(box.group(1)))
    uri = f"diagrams/{drawn.name}"
    if files.get_file_from_path(uri) is None:
        files.append(File.generated(config, uri, abs_src_path=str(drawn)))
    relative = posixpath.relpath(uri, posixpath.dirname(page.file.dest_uri) or ".")
    least = f"min-width: {width * 6 // 10}px"  # smaller, its words could not be read: it scrolls instead
    text = escape(" ".join(source.split()), quote=True)
    return f'<div class="diagram"><img src="{relative}" width="{width}" style="{least}" alt="{text}"></div>'


class _Loads(HTMLParser):
    """The addresses that a browser loads by itself when it shows one page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("audio", "embed", "iframe", "img", "script", "source", "video"):
            self.found.append(values.get("src") or "")
        elif tag == "link" and values.get("rel") != "canonical":
            self.found.append(values.get("href") or "")


def on_post_build(config: MkDocsConfig) -> None:
    """Fail the build when a page loads anything from another host."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix == ".html":
            page = _Loads()
            page.feed(path.read_text())
            loads = page.found
        elif path.suffix == ".css":
            loads = re.findall(r"(?:url\(|@import\s*)[\"']?([^\"')\s]+)", path.read_text())
        else:
            continue
        foreign = [one for one in loads if re.match(r"(?:https?:)?//", one)]
        if foreign:
            raise PluginError(f"{path}: loads from another host: {', '.join(foreign)}")
