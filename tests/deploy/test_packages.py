"""What users install: wheel, source distribution, bundle, man page, completions, licences."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter import __version__
from ckpt_exporter.cli import build_parser
from deploy.packaging import GENERATED
from deploy.packaging.dependencies import licence, locked
from deploy.packaging.options import describe
from tests.integration.daemon import REPOSITORY, get, parse_scrape, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = REPOSITORY / "deploy/share"
BASH_COMPLETION = SHARE / "bash-completion/completions/ckpt-exporter"
VERSIONED = ("docs/LICENCES.md", "deploy/sbom.cdx.json")


def run(*line: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        line, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL, **options  # type: ignore[call-overload,no-any-return]
    )  # fmt: skip


class TestGenerated:
    @pytest.mark.parametrize("name", [name for name in GENERATED if name not in VERSIONED])
    def test_current(self, name: str, golden: Callable[[str, str], None]) -> None:
        """The file is what the parsers give now (`make generated` writes it)."""
        text = GENERATED[name](REPOSITORY)
        if text is None:
            pytest.skip("there is nothing to make it from")
        golden(name, text)

    def test_every_option_is_described(self) -> None:
        """The described command line is the one that the parsers take."""
        parser, commands = build_parser()
        described = {command.name: command for command in describe()}

        assert set(described) == {"", *commands}
        for name, known in {"": parser, **commands}.items():
            flags = {flag for option in described[name].options for flag in option.flags}
            assert flags == set(known._option_string_actions)

    def test_man_page_has_every_option(self) -> None:
        """Each command's section names each of its options."""
        page = (SHARE / "man/man1/ckpt-exporter.1").read_text().replace("\\-", "-")
        sections = dict(re.findall(r"^\.SS (\S+)\n(.*?)(?=^\.S[SH] )", page, flags=re.MULTILINE | re.DOTALL))
        for command in describe()[1:]:
            for option in command.options:
                assert all(f"\\fB{flag}\\fR" in sections[command.name] for flag in option.flags)

    @pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is missing")
    def test_man_page_is_sound(self) -> None:
        """A formatter finds no error in the man page."""
        done = run("mandoc", "-T", "lint", "-W", "error", SHARE / "man/man1/ckpt-exporter.1")
        assert (done.returncode, done.stdout) == (0, "")


def complete_in_bash(*words: str) -> list[str]:
    """Return what bash offers for the last of these words."""
    script = (
        f'source "{BASH_COMPLETION}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ckpt_exporter;'
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = run("bash", "-c", script, "bash", "ckpt-exporter", *words, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
class TestBash:
    def test_commands(self) -> None:
        """The first word is a command or an option of the program."""
        assert complete_in_bash("re")[0] == "replay" or "replay" in complete_in_bash("re")
        assert complete_in_bash("--v") == ["--version"]

    def test_options_of_the_command(self) -> None:
        """Behind a command its own options are offered, and no other command's."""
        assert complete_in_bash("check", "--") == ["--help", "--config.file", "--web.config.file"]
        assert "--record.path" in complete_in_bash("run", "--re")

    @pytest.mark.parametrize("typed", [("--log.level", "d"), ("--log.level", "=", "d")])
    def test_values(self, typed: tuple[str, ...]) -> None:
        """An option's few values are offered in both ways of writing it."""
        assert complete_in_bash("run", *typed) == ["debug"]

    def test_value_not_begun(self) -> None:
        """Right behind the equals sign all values are offered."""
        assert complete_in_bash("run", "--log.format", "=") == ["logfmt", "json"]

    def test_files(self) -> None:
        """Files are offered where a file belongs."""
        assert complete_in_bash("check", "--config.file", "=", "pypro") == ["pyproject.toml"]
        assert complete_in_bash("replay", "pypro") == ["pyproject.toml"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is missing")
def test_fish() -> None:
    """Fish offers an option's values, and the commands."""
    file = SHARE / "fish/vendor_completions.d/ckpt-exporter.fish"
    asked = 'complete -C "ckpt-exporter run --log.level="; complete -C "ckpt-exporter che"'
    done = run("fish", "--no-config", "-c", f"source {file}; {asked}")
    offered = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert sorted(offered) == [
        "--log.level=debug",
        "--log.level=error",
        "--log.level=info",
        "--log.level=warn",
        "check",
    ]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is missing")
def test_zsh() -> None:
    """Zsh can read its completion."""
    done = run("zsh", "-n", SHARE / "zsh/site-functions/_ckpt-exporter")
    assert (done.returncode, done.stderr) == (0, "")


SHELLCHECK = shutil.which("shellcheck", path=Path(sys.executable).parent) or shutil.which("shellcheck")


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is missing")
def test_scripts_are_clean() -> None:
    """The linter finds nothing in the shell scripts that are shipped."""
    scripts = sorted((REPOSITORY / "deploy").glob("*/*.sh"))
    assert {"prolog.sh", "epilog.sh", "launcher.sh", "bundle.sh"} <= {script.name for script in scripts}
    done = run(str(SHELLCHECK), "-x", "-P", "SCRIPTDIR", *scripts)
    assert (done.returncode, done.stdout) == (0, "")


# --- licences and bill of materials


def shipped() -> dict[str, str]:
    """Return name and version of every locked package."""
    return {package.name: package.version for package in locked(REPOSITORY)}


class TestSupplyChain:
    def test_licences_of_all_and_nothing_else(self) -> None:
        """The page lists exactly the locked packages, each with a licence that may be shipped along."""
        rows = re.findall(
            r"^\| ([a-z0-9-]+) \| (\d\S*) \| (.+?) \|",
            (REPOSITORY / "docs/LICENCES.md").read_text(),
            re.MULTILINE,
        )
        assert {name: version for name, version, _ in rows} == shipped()
        allowed = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT"}
        assert {part for _, _, said in rows for part in said.split(" AND ")} <= allowed

    def test_bill_of_materials(self) -> None:
        """The bill lists exactly the locked packages, with the licences of the page."""
        bill = json.loads((REPOSITORY / "deploy/sbom.cdx.json").read_text())
        assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
        assert bill["metadata"]["component"]["version"] == __version__
        assert {part["name"]: part["version"] for part in bill["components"]} == shipped()
        page = (REPOSITORY / "docs/LICENCES.md").read_text()
        for part in bill["components"]:
            said = part["licenses"][0]["expression"]
            assert f"| {part['name']} | {part['version']} | {said} |" in page

    @pytest.mark.parametrize("name", sorted(shipped()))
    def test_licence_is_what_the_package_says(self, name: str) -> None:
        """The page repeats the package's own words, where the locked version is installed."""
        if metadata.version(name) != shipped()[name]:
            pytest.skip(f"another version of {name} is installed than the lock has")
        assert (
            f"| {name} | {shipped()[name]} | {licence(name)} |"
            in (REPOSITORY / "docs/LICENCES.md").read_text()
        )

    def test_security_policy(self) -> None:
        """The policy says how to report and which versions get fixes."""
        text = (REPOSITORY / "SECURITY.md").read_text()
        assert "## Reporting" in text
        assert "## Supported versions" in text


# --- wheel and source distribution

HAS_BUILD = (
    importlib.util.find_spec("build") is not None and importlib.util.find_spec("hatchling") is not None
)


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheel and source distribution of this tree."""
    if not HAS_BUILD:
        pytest.skip("needs the packages build and hatchling (make test-wheel)")
    place = tmp_path_factory.mktemp("dist")
    # The wheel is made from the source distribution, as the index would have it.
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place, REPOSITORY)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return place


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """Return the wheel."""
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment that sees this one's packages, but not this tree.

    The dependencies come from the environment of the tests: nothing is fetched.
    """
    place = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", place)
    done = run(
        sys.executable, "-m", "pip", "--python", place / "bin/python",
        "install", "--no-deps", "--no-index", wheel,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (site,) = place.glob("lib/python*/site-packages")
    needed = (
        "prometheus_client",
        "psutil",
        "watchdog",
        "yaml",
        "_yaml",
        "pynvml.py",
        "nvidia_smi.py",
        "bcrypt",
    )
    for name in needed:
        for origin in map(Path, sys.path):
            if (origin / name).exists():
                (site / name).symlink_to(origin / name)
                break
    return place


class TestWheel:
    def test_contents(self, wheel: Path) -> None:
        """The wheel holds every module of the package, the licence, man page and completions; no tests."""
        names = set(zipfile.ZipFile(wheel).namelist())
        modules = {
            path.relative_to(REPOSITORY).as_posix()
            for path in (REPOSITORY / "ckpt_exporter").rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        assert modules <= names
        rest = {name for name in names - modules if ".dist-info/" not in name}
        assert {name.partition(".data/data/")[2] for name in rest} == {
            path.relative_to(REPOSITORY / "deploy").as_posix() for path in SHARE.rglob("*") if path.is_file()
        }
        assert any(name.endswith("licenses/LICENSE") for name in names)

    def test_source_distribution(self, dist: Path) -> None:
        """The source distribution holds what its own tests and documents need, and no caches."""
        (archive,) = dist.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            names = {name.partition("/")[2] for name in tar.getnames()}
        wanted = {
            "pyproject.toml", "README.md", "SECURITY.md", "Makefile", "environment.sh", "docs/METRICS.md",
            "ckpt-exporter.example.yml", "deploy/docker/Dockerfile", "tests/golden/metrics.txt",
        }  # fmt: skip
        assert wanted <= names
        assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]

    def test_version(self, installed: Path) -> None:
        """The installed program says its version, from its own files."""
        done = run(installed / "bin/ckpt-exporter", "--version", cwd="/")
        assert done.stdout.startswith(f"ckpt-exporter {__version__} ")
        where = run(
            installed / "bin/python", "-c", "import ckpt_exporter as c; print(c.__file__)", cwd="/"
        ).stdout
        assert where.startswith(str(installed))

    def test_man_page_and_completions_are_installed(self, installed: Path) -> None:
        """Man page and completions lie where man and the shells look below the prefix."""
        for path in SHARE.rglob("*"):
            if path.is_file():
                assert (installed / "share" / path.relative_to(SHARE)).read_bytes() == path.read_bytes()

    def test_measures_a_save(self, installed: Path, tmp_path: Path) -> None:
        """The installed daemon finds a save, serves it and stops."""
        smoke(installed / "bin/ckpt-exporter", tmp_path)

    def test_replays(self, installed: Path, tmp_path: Path) -> None:
        """The installed program replays a recording."""
        recording = REPOSITORY / "tests/replay/hf_trainer.jsonl"
        done = run(installed / "bin/ckpt-exporter", "replay", "--format=json", recording, cwd="/")
        assert done.returncode == 0, done.stderr
        assert "saves" in json.loads(done.stdout)


def smoke(program: Path, place: Path, **environment: str) -> None:
    """Run the program on an empty directory, write one checkpoint, scrape it, stop it."""
    checkpoints = place / "ckpt"
    checkpoints.mkdir()
    config = place / "config.yml"
    config.write_text(
        f"directories: [{{name: x, path: {checkpoints}}}]\ndetect: {{quiet_seconds: 1, min_bytes: 1}}\n"
        "history: {path: null}\ngpu: {backend: simulated}\nweb: {listen_address: '127.0.0.1:0'}\n"
    )
    log = place / "log"
    with log.open("wb") as stderr:
        daemon = subprocess.Popen(
            [program, "run", f"--config.file={config}", "--log.format=json"],
            cwd="/", stderr=stderr, env={**os.environ, **environment},
        )  # fmt: skip

    def listening() -> str:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return next((line["address"] for line in lines if line["msg"] == "listening"), "")

    try:
        wait_until(lambda: daemon.poll() is not None or listening() != "", what="listening")
        assert daemon.poll() is None, log.read_text()
        url = f"http://{listening()}"
        wait_until(
            lambda: parse_scrape(get(f"{url}/metrics")).get("ckpt_watch_up", dir="x", backend="inotify") == 1
        )
        (checkpoints / "model.pt").write_bytes(bytes(4096))
        wait_until(
            lambda: (
                parse_scrape(get(f"{url}/metrics")).get("ckpt_saves_total", dir="x", result="complete") == 1
            )
        )
        daemon.terminate()
        assert daemon.wait(timeout=10) == 0
        assert "Traceback" not in log.read_text()
    finally:
        daemon.kill()
        daemon.wait()


@pytest.mark.skipif(
    not os.environ.get("CKPT_TEST_BUNDLE"), reason="set CKPT_TEST_BUNDLE=1 (fetches packages)"
)
class TestBundle:
    def test_runs_where_it_is_unpacked(self, wheel: Path, tmp_path: Path) -> None:
        """The bundle runs from a read-only place with a bare Python, and writes nothing there."""
        done = run(
            "sh",
            REPOSITORY / "deploy/packaging/bundle.sh",
            wheel,
            env={**os.environ, "PYTHON": sys.executable},
        )
        assert done.returncode == 0, done.stderr
        archive = REPOSITORY / done.stdout.strip()
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(tmp_path)
        finally:
            archive.unlink()
        (top,) = tmp_path.iterdir()
        before = sorted(path for path in top.rglob("*"))
        (tmp_path / "work").mkdir()

        bare = os.path.realpath(sys.executable)
        smoke(top / "bin/ckpt-exporter", tmp_path / "work", PYTHON=bare)
        assert sorted(top.rglob("*")) == before
