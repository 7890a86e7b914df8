"""The code in the documents runs, and what they point to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_readme_runs_and_prints_what_it_says(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}

    exec(compile(program, "README.md", "exec"), namespace)  # noqa: S102  our own document

    promised = [comment.split(":")[0].strip() for comment in re.findall(r"print\(.*\)  # (.*)", program)]
    assert capsys.readouterr().out.splitlines() == promised


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_document_has_only_programs_that_run_as_tests(page: Path, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for number, program in enumerate(programs):
        (tmp_path / f"test_program_{number}.py").write_text(program, encoding="utf-8")

    ran = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/testing.md"])
def test_every_file_that_a_document_names_is_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"\b((?:src|actors|mailbox|supervision|tests|examples|benchmarks)/[\w/]*\w\.\w+)", text))

    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
