"""Gathers the documentation site's sources: the pages of docs/, the packages' READMEs, the changelog, and a reference page
for each package made from its code, and the last page of `nox -s report`, if there is one.

A link from one gathered page to another is made to point to its place on the site; one to any other file of the repository
becomes its path, set as code. A link to nothing is an error that names the page.
"""

from __future__ import annotations

import argparse
import importlib
import posixpath
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from workspace import PROJECTS, ROOT

LINK: Final = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
FENCE: Final = re.compile(r"^(```|~~~)")
REPORT: Final = ROOT / "build" / "report"
EXTERNAL: Final = ("http:", "https:", "mailto:", "#")


class BrokenLinkError(SystemExit):
    """A page points to a file that doesn't exist."""


def places() -> dict[Path, Path]:
    """File of the repository → where it stands on the site, for everything that becomes a page or a picture."""
    found = {
        path: path.relative_to(ROOT / "docs")
        for path in (ROOT / "docs").rglob("*")
        if path.is_file() and path.name not in ("conf.py",) and path != ROOT / "docs" / "README.md"
    }
    for name, folder in PROJECTS.items():
        if (folder / "README.md").is_file():
            found[folder / "README.md"] = Path("packages") / f"{name}.md"
    found[ROOT / "CHANGELOG.md"] = Path("changelog.md")
    found[ROOT / "CONTRIBUTING.md"] = Path("contributing.md")
    return found


def moved(text: str, page: Path, known: dict[Path, Path]) -> str:
    """`text` of the file `page` with its links as the site needs them."""
    here = known[page].parent
    return relinked(text, lambda match: _moved_link(match, page, here, known))


def relinked(text: str, moved: Callable[[re.Match[str]], str]) -> str:
    """`text` with each link to a file as `moved` makes it; blocks of code and links to elsewhere are left alone."""
    made: list[str] = []
    prose: list[str] = []  # a link's text may run over the end of a line

    def flush() -> None:
        made.append(LINK.sub(lambda match: match[0] if _is_elsewhere(match) else moved(match), "".join(prose)))
        prose.clear()

    fenced = False
    for line in text.splitlines(keepends=True):
        if FENCE.match(line.lstrip()):
            fenced = not fenced
            flush()
            made.append(line)
        elif fenced:
            made.append(line)
        else:
            prose.append(line)
    flush()
    return "".join(made)


def _is_elsewhere(match: re.Match[str]) -> bool:
    return match["target"].startswith(EXTERNAL)


def _moved_link(match: re.Match[str], page: Path, here: Path, known: dict[Path, Path]) -> str:
    target = match["target"]
    name, hash_, anchor = target.partition("#")
    file = (page.parent / name).resolve()
    if file.is_dir() and (file / "README.md") in known:
        file = file / "README.md"
    if file == ROOT / "docs" / "README.md" or file == ROOT / "docs":
        file = ROOT / "docs" / "index.md"
    if file in known:
        return f"{match['image']}[{match['text']}]({_relative(known[file], here)}{hash_}{anchor})"
    if not file.exists():
        raise BrokenLinkError(f"{page.relative_to(ROOT)} points to {target}, which doesn't exist")
    text = match["text"]
    return text if text.startswith("`") else f"{text} (`{file.relative_to(ROOT)}`)"


def _relative(target: Path, here: Path) -> str:
    return posixpath.relpath(target.as_posix(), here.as_posix() or ".")


def reference(name: str, folder: Path) -> str:
    """The reference page of a package: its public names, from the code; those of a sibling are described there."""
    module = next(path.parent.name for path in sorted((folder / "src").glob("*/__init__.py")))
    description = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["description"]
    package = importlib.import_module(module)
    own: list[str] = []
    others: list[str] = []
    for public in package.__all__:
        home = str(getattr(getattr(package, public), "__module__", module))
        (own if home.split(".")[0] == module else others).append(public)
    also = f"\n\nAlso importable from here: {', '.join(f'`{one}`' for one in others)}." if others else ""
    return (
        f"# `{module}`\n\n{description}. Everything here is public; it is installed as `{name}`.{also}\n\n"
        f"```{{eval-rst}}\n.. automodule:: {module}\n   :members: {', '.join(own)}\n   :imported-members:\n```\n"
    )


def make(site: Path) -> int:
    """Write the sources to the empty folder `site`; how many pages."""
    shutil.rmtree(site, ignore_errors=True)
    known = places()
    for source, place in known.items():
        target = site / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(moved(source.read_text(), source, known))
        else:
            shutil.copy2(source, target)
    (site / "api").mkdir()
    for name, folder in PROJECTS.items():
        if "packages" in folder.parts:
            (site / "api" / f"{name}.md").write_text(reference(name, folder))
    add_report(site)
    shutil.copy2(ROOT / "docs" / "conf.py", site / "conf.py")
    return sum(1 for _ in site.rglob("*.md"))


def add_report(site: Path, report: Path = REPORT) -> None:
    """Put the page of `nox -s report` beside the page that says how to read it, with a link there; nothing where there is none."""
    extra = site / "extra" / "report"
    extra.parent.mkdir()
    if (report / "index.html").is_file():
        shutil.copytree(report, extra)
        with (site / "report.md").open("a", encoding="utf-8") as page:
            page.write('\n<p><a href="report/index.html">The last report</a></p>\n')


def main() -> None:
    """Run as a command: `python tools/make_site.py FOLDER`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="folder to write to; what is in it goes")
    print(f"{make(parser.parse_args().site)} pages")


if __name__ == "__main__":
    main()
