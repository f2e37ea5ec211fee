"""The site's sources: links follow what they point to, and a link to nothing ends the build."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import make_site  # noqa: E402

KNOWN = {
    ROOT / "docs" / "faq.md": Path("faq.md"),
    ROOT / "docs" / "design" / "death.md": Path("design/death.md"),
    ROOT / "packages" / "fdb-schema" / "README.md": Path("packages/fdb-schema.md"),
}


def _moved(text: str, page: Path) -> str:
    return make_site.moved(text, page, KNOWN).rstrip("\n")


def test_a_link_from_a_readme_to_a_page_and_back() -> None:
    readme = ROOT / "packages" / "fdb-schema" / "README.md"
    assert _moved("[why](../../docs/design/death.md#late)", readme) == "[why](../design/death.md#late)"
    death = ROOT / "docs" / "design" / "death.md"
    assert _moved("[schema](../../packages/fdb-schema)", death) == "[schema](../packages/fdb-schema.md)"
    assert _moved("[faq](../faq.md)", death) == "[faq](../faq.md)"


def test_a_file_that_is_no_page_becomes_its_path() -> None:
    assert _moved("[the licence](../LICENSE)", ROOT / "docs" / "faq.md") == "the licence (`LICENSE`)"
    assert _moved("[`noxfile.py`](../noxfile.py)", ROOT / "docs" / "faq.md") == "`noxfile.py`"


def test_code_and_other_hosts_are_left_alone() -> None:
    text = "```\n[not](a-link.md)\n```\n[there](https://example.org/x) [here](#there)"
    assert _moved(text, ROOT / "docs" / "faq.md") == text


def test_a_link_whose_text_is_broken_over_two_lines() -> None:
    assert _moved("see [why\nso](../LICENSE)", ROOT / "docs" / "faq.md") == "see why\nso (`LICENSE`)"


def test_a_link_to_nothing_names_the_page() -> None:
    with pytest.raises(make_site.BrokenLinkError, match=r"docs/faq.md points to gone.md"):
        _moved("[x](gone.md)", ROOT / "docs" / "faq.md")


def test_every_page_of_the_repository_has_a_place_of_its_own() -> None:
    found = make_site.places()
    assert len(set(found.values())) == len(found)
    for page in found:
        if page.suffix == ".md":
            make_site.moved(page.read_text(), page, found)


def test_every_page_is_reached_from_the_first_in_the_order_of_learning() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    trees = re.findall(r"```\{toctree\}\n(?::\w+:[^\n]*\n)*\n(.*?)```", index, re.DOTALL)
    entries = [entry for tree in trees for entry in tree.split()]
    pages = {place.with_suffix("").as_posix() for place in make_site.places().values() if place.suffix == ".md"}
    assert len(set(entries)) == len(entries)
    assert {entry for entry in entries if not entry.startswith("api/")} == pages - {"index"}
    for folder in ("futures-worker", "lease-locks", "s3heap-tender", "idempotent-txn", "fdb-embedded"):
        assert next(entry for entry in entries if entry.startswith(f"{folder}/")) == f"{folder}/tutorial"


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_can_be_read_in_light_and_dark_and_says_what_it_shows(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    space = {"svg": "http://www.w3.org/2000/svg"}
    assert root.find("svg:title", space) is not None
    assert root.find("svg:desc", space) is not None
    style = root.findtext("svg:style", "", space)
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    coloured = set(re.findall(r"(\.?[a-z]+) \{ (?:fill|stroke): #", light))
    assert coloured <= set(re.findall(r"(\.?[a-z]+) \{ (?:fill|stroke): #", dark))
    shown = {name for part in root.iter() for name in part.get("class", "").split()}
    assert shown <= set(re.findall(r"\.([a-z]+)", style))
    assert any(picture.name in page.read_text() for page in make_site.places() if page.suffix == ".md")
