"""Put `src/` on the path of this interpreter, and print what the package needs, one requirement a line.

With those installed it is an editable install but for the entry point of the pytest plugin. Nothing is built, and so
nothing is fetched to build it with, which would be a good part of the time that the first `make demo` takes.
"""

from __future__ import annotations

import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
Path(sysconfig.get_path("purelib"), "loopwarden.pth").write_text(f"{ROOT / 'src'}\n", encoding="utf-8")
print(*project["dependencies"], sep="\n")
