"""What MkDocs does not do by itself: pages link to files outside docs/ as on a code host, and the site has them, too.

A link to ``../examples/films.toml`` works where the repository is browsed. In the site it leads to a page with the text
of that file; a link to a folder leads to a list of its files. A link to a file that does not exist stays as it is, and
the strict build refuses it. Sequence diagrams become pictures (``sequence_diagrams.py``).
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))  # hooks are loaded by path, and not as part of a package
from sequence_diagrams import svg  # noqa: E402

_MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DOCS = "docs"
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
_FENCED = re.compile(r"^( *)(`{3,}).*?^\1\2", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".toml": "toml", ".proto": "protobuf", ".yml": "yaml", ".json": "json"}
_FOLDER = "repository"


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for each file outside docs/ that a page, or another such file, links to."""
    pages = files.documentation_pages()
    waiting = [target for page in pages for target in _outside(f"{_DOCS}/{page.src_uri}", page.content_string)]
    made: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in made:
            continue
        made.add(path)
        content = _page_of(path)
        if path.endswith(".md"):
            waiting += _outside(path, content)
        elif (ROOT / path).is_dir():
            waiting += [file.relative_to(ROOT).as_posix() for file in _listed(ROOT / path)]
        files.append(File.generated(config, _uri(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links that lead out of docs/ into links to the generated pages."""
    here = page.file.src_uri
    source = here.removeprefix(f"{_FOLDER}/").removesuffix(".md") if here.startswith(f"{_FOLDER}/") else None
    if source is not None and not source.endswith(".md"):
        return markdown  # a listing, whose links are the site's already
    path = source or f"{_DOCS}/{here}"

    def inside(match: re.Match[str]) -> str:
        target = _resolved(path, match[2])
        if not (ROOT / target).exists():
            return match[0]
        uri = target.removeprefix(f"{_DOCS}/") if target.startswith(f"{_DOCS}/") else _uri(target)
        return f"{match[1]}{posixpath.relpath(uri, posixpath.dirname(here) or '.')}{match[3]}"

    linked = _outside_fences(markdown, lambda text: _LINK.sub(inside, text))
    return _MERMAID.sub(lambda block: f'<div class="wide">{svg(block[1], f"Sequence of {page.title}")}</div>', linked)


def _outside_fences(markdown: str, change: Any) -> str:
    parts, at = [], 0
    for fence in _FENCED.finditer(markdown):
        parts += [change(markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(markdown[at:])])


def _outside(path: str, text: str) -> list[str]:
    targets = [_resolved(path, match[2]) for match in _LINK.finditer(_FENCED.sub("", text))]
    return [target for target in targets if not target.startswith(f"{_DOCS}/") and (ROOT / target).exists()]


def _resolved(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _uri(path: str) -> str:
    return f"{_FOLDER}/{path}.md"


def _listed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".py", ".toml", ".md"))


def _page_of(path: str) -> str:
    file = ROOT / path
    if file.is_dir():
        names = "\n".join(f"- [{each.name}]({file.name}/{each.name}.md)" for each in _listed(file))
        return f"# {path}\n\n{names}\n"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    return f"# {path}\n\n````{_LANGUAGES.get(file.suffix, 'text')}\n{text}\n````\n"
