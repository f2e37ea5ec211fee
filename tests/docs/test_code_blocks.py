"""Every Python block of every README and page runs as it stands, in a fresh folder, on a fresh database.

The blocks of one page run in order, each in a process of its own; where the page has `<!-- blocks continue each other -->`,
as one program. A page that needs workers names `futures-worker run`;
then one serves the database meanwhile. A block that can't run here is preceded by `<!-- not run: why -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [
        ROOT / "README.md",
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("services/*/README.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
)
CONTINUED = "<!-- blocks continue each other -->"
BLOCK = re.compile(r"(?P<skip><!-- not run: [^>]+ -->\s*)?```python\n(?P<code>.*?)```", re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\((?!https?:|mailto:|#)([^)#\s]+)")


def blocks(page: Path) -> list[str]:
    text = page.read_text()
    found = [block["code"] for block in BLOCK.finditer(text) if block["skip"] is None]
    return ["\n".join(found)] if found and CONTINUED in text else found


WITH_CODE = [page for page in PAGES if blocks(page)]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[None]:
    command = [
        sys.executable,
        "-m",
        "futures_worker",
        "run",
        "--db",
        "embedded:./.mainspring",
        "--cluster",
        "demo",
        "--slots",
        "2",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the worker ended before it was ready"
        yield
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def run_blocks(page: Path, folder: Path) -> None:
    environment = {**os.environ, "MAINSPRING_DB": "embedded:./.mainspring", "MAINSPRING_CLUSTER": "demo"}
    for number, code in enumerate(blocks(page), 1):
        script = folder / f"block_{number}.py"
        script.write_text(code)
        done = subprocess.run(
            [sys.executable, script.name],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"block {number} of {page.relative_to(ROOT)}:\n{code}\n{done.stdout}{done.stderr}"


def _needs_worker(page: Path) -> bool:
    return "futures-worker run" in page.read_text()


@pytest.mark.parametrize("page", [p for p in WITH_CODE if not _needs_worker(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_runs(page: Path, tmp_path: Path) -> None:
    run_blocks(page, tmp_path)


@pytest.mark.parametrize("page", [p for p in WITH_CODE if _needs_worker(p)], ids=lambda p: str(p.relative_to(ROOT)))
@pytest.mark.usefixtures("worker")
def test_every_block_runs_beside_a_worker(page: Path, tmp_path: Path) -> None:
    run_blocks(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []
