"""The code in the documents runs, what they point to is there, and their tables say what the code has."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from postgres_servers import need_postgres
from private_postgres import POSTGRES_KINDS, PostgresServer
from private_server import Server
from pydantic import BaseModel
from sizing import table

import loopwarden.actors
import loopwarden.errors
import loopwarden.mailbox
import loopwarden.supervision
from loopwarden.supervision import Backoff, EventKind, ExitCode

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *PAGES]


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _programs(page: Path) -> list[str]:
    return [program for program, output in _blocks(page) if not output]


def _blocks(page: Path) -> list[tuple[str, str]]:
    """Return the programs of a page, each with the output that is shown right behind it."""
    return re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", _text(page), re.DOTALL)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("program", _programs(ROOT / "README.md"))
def test_a_program_of_the_readme_runs_and_prints_what_it_says(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}

    exec(compile(program, "README.md", "exec"), namespace)  # noqa: S102  our own document

    promised = [comment.split(":")[0].strip() for comment in re.findall(r"print\(.*\)  # (.*)", program)]
    assert capsys.readouterr().out.splitlines() == promised


#: Plugins that no program needs; each takes a while to import.
NO_OTHERS = [
    part
    for name in ("cacheprovider", "hypothesispytest", "pytest_cov", "randomly", "valkey", "xdist")
    for part in ("-p", f"no:{name}")
]


@pytest.mark.parametrize("page", [page for page in PAGES if _programs(page)], ids=lambda page: page.stem)
def test_document_has_only_programs_that_run_as_tests(page: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for number, program in enumerate(_programs(page)):
        (programs / f"test_program_{number}.py").write_text(program, encoding="utf-8")

    with ExitStack() as stack:
        environment = dict(os.environ)
        environment.pop("PYTEST_ADDOPTS", None)  # what is said to this pytest is not for that one
        if "REDIS_URL" in _text(page):
            environment["REDIS_URL"] = stack.enter_context(Server("valkey", tmp_path / "server")).url
        if "POSTGRES_URL" in _text(page):
            need_postgres(POSTGRES_KINDS[0])
            environment["POSTGRES_URL"] = stack.enter_context(PostgresServer(POSTGRES_KINDS[0], "fsync=off")).url
        ran = subprocess.run(
            [sys.executable, "-P", "-m", "pytest", "-q", "--import-mode=importlib", *NO_OTHERS, "."],
            cwd=programs,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )

    assert ran.returncode == 0, ran.stdout


SHOWN = [(page.stem, program, output) for page in PAGES for program, output in _blocks(page) if output]


@pytest.mark.parametrize(("program", "output"), [shown[1:] for shown in SHOWN], ids=[shown[0] for shown in SHOWN])
def test_program_with_its_output_prints_what_the_document_shows(program: str, output: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")

    ran = subprocess.run([sys.executable, "-P", str(file)], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert _as_shown(ran.stdout, output) == output.splitlines()


def _as_shown(printed: str, output: str) -> list[str]:
    """Return the printed lines, each as it is in the output if it fits: `…` there leaves something out."""
    told = printed.splitlines()
    for number, (line, shown) in enumerate(zip(told, output.splitlines(), strict=False)):
        if re.fullmatch(".*".join(map(re.escape, shown.split("…"))), line):
            told[number] = shown
    return told


@pytest.mark.parametrize("page", DOCUMENTS, ids=_name)
def test_every_file_that_a_document_names_is_there(page: Path) -> None:
    folders = "src|actors|mailbox|supervision|tests|examples|benchmarks|scripts|docs"
    named = set(re.findall(rf"(?<![\w./:])((?:{folders})/[\w/]*\w\.\w+)", _text(page)))

    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=_name)
def test_every_link_of_a_document_leads_somewhere(page: Path) -> None:
    lost: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _text(page)):
        path, _, heading = link.partition("#")
        target = page if not path else page.parent / path
        if "://" in link:
            continue
        if not target.exists() or (heading and heading not in _headings(target)):
            lost.append(link)

    assert lost == []


@pytest.mark.parametrize("page", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=_name)
def test_prose_of_a_document_is_at_most_120_characters_wide(page: Path) -> None:
    lines = enumerate(_text(page).splitlines(), 1)  # a row of a table cannot be wrapped

    assert [number for number, line in lines if len(line) > 120 and not line.startswith("|")] == []


def _headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", _text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_ways_through_the_code_name_what_is_in_their_files() -> None:
    ways = _text(ROOT / "ARCHITECTURE.md").partition("## Four ways")[2].partition("\n## ")[0]
    lost: list[str] = []
    checked = 0
    for line in ways.splitlines():
        place = re.match(r" {4}(.*?)\s([\w/]+\.py)\b", line)
        if place is None:
            continue
        text = _text(ROOT / place[2])
        for kind, part in re.findall(r"\b([A-Z]\w+)\.(\w+)", place[1])[-1:]:
            checked += 1
            if f"class {kind}" not in text or not re.search(rf"\b{part}\b", text):
                lost.append(line)

    assert lost == []
    assert checked > 40


def test_table_of_sizes_is_what_the_script_says() -> None:
    assert table([1e3, 1e5, 1e7]) in _text(ROOT / "docs" / "scaling.md")


def test_every_page_is_in_the_index_and_in_the_readme() -> None:
    index, readme = _text(ROOT / "docs" / "README.md"), _text(ROOT / "README.md")
    names = [page.name for page in PAGES if page.name != "README.md"]

    assert [name for name in names if f"]({name})" not in index] == []
    assert [name for name in names if f"](docs/{name})" not in readme] == []


def test_readme_is_short() -> None:
    text = _text(ROOT / "README.md")

    assert len(text.encode()) <= 6_000
    assert [line for line in text.splitlines() if len(line) > 160] == []


# The tables of docs/reference.md.

_NAMES = {
    "Any": Any,
    "Backoff": Backoff,
    "SIGINT": signal.SIGINT,
    "SIGTERM": signal.SIGTERM,
    "os": os,
}


def _tables() -> dict[str, list[list[str]]]:
    """Return the rows of each table of the reference, by the heading above it; the last cell has the meaning."""
    tables: dict[str, list[list[str]]] = {}
    heading = ""
    for line in _text(ROOT / "docs" / "reference.md").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").strip("`")
        elif line.startswith("|"):
            tables.setdefault(heading, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return {heading: rows[2:] for heading, rows in tables.items()}


TABLES = _tables()
TYPES: dict[str, Any] = {
    name: found
    for module in (loopwarden.mailbox, loopwarden.actors, loopwarden.supervision)
    for name, found in vars(module).items()
    if inspect.isclass(found)
}


def _defaults(kind: Any) -> dict[str, object]:
    """Return what can be given to a class, by name, with the defaults; ``...`` where there is none."""
    if issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        given = {
            name: ... if each.is_required() else each.get_default(call_default_factory=True) for name, each in fields
        }
        return {name: default for name, default in given.items() if name != "ticket"}
    return {
        name: ... if each.default is inspect.Parameter.empty else each.default
        for name, each in inspect.signature(kind).parameters.items()
        if name != "clock" and each.kind is not inspect.Parameter.VAR_KEYWORD
    }


@pytest.mark.parametrize("name", [name for name in TABLES if name in TYPES])
def test_reference_has_every_field_with_its_default(name: str) -> None:
    told = {
        field.strip("`"): ... if default == "required" else eval(default.strip("`"), dict(_NAMES))  # noqa: S307  our own document
        for field, default, _ in TABLES[name]
    }

    assert told == _defaults(TYPES[name])


def test_reference_has_the_models_that_people_look_up() -> None:
    answers = {"HealthStatus", "DeadLetter", "MailboxStats", "ShutdownResult", "ShutdownReport"}
    settings = {"ChildSpec", "SupervisorSpec", "Timeouts", "StallPolicy", "MailboxLoop", "Service"}

    assert (answers | settings) - TABLES.keys() == set()


def test_reference_has_every_event_kind() -> None:
    assert [row[0].strip("`") for row in TABLES["Event kinds"]] == [kind.value for kind in EventKind]


@pytest.mark.parametrize("page", ["reference.md", "shutdown.md"])
def test_document_has_every_exit_code(page: str) -> None:
    told = re.findall(r"^\| (\d+) \| `(\w+)` \|", _text(ROOT / "docs" / page), re.MULTILINE)

    assert [(int(code), name) for code, name in told] == [(code.value, code.name) for code in ExitCode]


def test_reference_has_every_error() -> None:
    told = [row[0].strip("`") for row in TABLES["Errors"]]

    assert sorted(told) == sorted(loopwarden.errors.__all__)
