from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as a user's installer would, from a copy, so that nothing is left in the tree."""
    out = tmp_path_factory.mktemp("wheel")
    tree = out / "tree"
    shutil.copytree(ROOT / "src", tree / "src", symlinks=True)
    for folder in ("actors", "mailbox", "supervision"):
        shutil.copytree(ROOT / folder, tree / folder)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
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
            if path.suffix in {".py", ".sql"}
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


def test_the_wheel_works_from_outside_the_root(wheel: Path, tmp_path: Path) -> None:
    program = (
        "import loopwarden; from loopwarden.testing import ProbeLoop;"
        "ref = loopwarden.LoopActor.start(ProbeLoop(), name='x');"
        "print(ref.send(loopwarden.ShutdownRequest()).wait(60).clean_shutdown, loopwarden.__file__)"
    )
    zipfile.ZipFile(wheel).extractall(tmp_path)

    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )

    assert ended.stdout.split() == ["True", str(tmp_path / "loopwarden" / "__init__.py")]
