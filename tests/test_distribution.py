from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"src", "actors", "mailbox", "supervision"}
FILES = {"pyproject.toml", "README.md", "LICENSE"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what the wheel is built from, as it is in a fresh checkout."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        made_here = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=made_here)
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as a user's installer would."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-P", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(tree)],
        check=True,
        capture_output=True,
        timeout=200,  # it fetches what it builds with: most of the time that the test has
    )
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_the_type_marker_and_nothing_else(wheel: Path) -> None:
    expected = (
        {
            f"loopwarden/{path.relative_to(ROOT)}"
            for folder in ("actors", "mailbox", "supervision")
            for path in (ROOT / folder).rglob("*")
            if path.suffix in {".py", ".sql", ".lua"}
        }
        | {
            str(path.relative_to(ROOT / "src"))
            for path in (ROOT / "src" / "loopwarden").rglob("*")
            if path.suffix in {".py", ".typed"} and not any(parent.is_symlink() for parent in path.parents)
        }
        | {path.name for path in (ROOT / "src").glob("*.py")}
    )

    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert held == expected


@pytest.mark.usefixtures("wheel")
def test_building_leaves_nothing_in_the_tree(tree: Path) -> None:
    assert {path.name for path in tree.iterdir()} == FOLDERS | FILES
    assert {path.name for path in (tree / "src").iterdir()} == {"loopwarden", "_loopwarden_pytest.py"}


def test_the_sdist_holds_every_file_that_the_wheel_is_built_from(tree: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-P", "-m", "build", "--sdist", "--outdir", str(tmp_path), str(tree)],
        check=True,
        capture_output=True,
        timeout=200,  # as for the wheel
    )
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}

    files = {
        str(path.relative_to(tree)) for path in tree.rglob("*") if path.suffix in {".py", ".sql", ".lua", ".typed"}
    }

    assert files | FILES <= held


def test_the_wheel_works_from_outside_the_root(wheel: Path, tmp_path: Path) -> None:
    program = (
        "import loopwarden; from loopwarden.testing import ProbeLoop;"
        "ref = loopwarden.LoopActor.start(ProbeLoop(), name='x');"
        "print(ref.send(loopwarden.ShutdownRequest()).wait(60).clean_shutdown, loopwarden.__file__)"
    )
    shutil.unpack_archive(wheel, tmp_path, "zip")

    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )

    assert ended.stdout.split() == ["True", str(tmp_path / "loopwarden" / "__init__.py")]
