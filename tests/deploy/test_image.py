"""The container image: its recipe, its locked packages, and (on demand) the image itself, built and run.

``CKPT_TEST_IMAGE=build`` makes a root file system under the base's name with mmdebstrap first (two minutes);
``CKPT_TEST_IMAGE=FILE.tar.gz`` takes one that was made before. The steps and the running image are the real
ones; only the base is Debian's own Python instead of the one that the recipe names.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomllib

from tests.integration.daemon import REPOSITORY, Scrape, get, parse_scrape, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCKER = REPOSITORY / "deploy/docker"
RECIPE = DOCKER / "Dockerfile"
WANTED = os.environ.get("CKPT_TEST_IMAGE", "")
BUILDERS = ("buildah", "podman", "runc") + (("mmdebstrap",) if WANTED == "build" else ())


def instructions() -> list[tuple[str, str]]:
    """Return the recipe's instructions and their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", RECIPE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(word, rest) for word, rest in found]


def base_image() -> str:
    """Return the name of the base."""
    (image,) = [rest.partition("=")[2] for word, rest in instructions() if rest.startswith("PYTHON_IMAGE=")]
    return image


class TestRecipe:
    @pytest.mark.skipif(
        shutil.which("hadolint", path=Path(sys.executable).parent) is None, reason="hadolint is missing"
    )
    def test_lint(self) -> None:
        """The linter finds nothing."""
        tool = Path(sys.executable).parent / "hadolint"
        done = subprocess.run([tool, RECIPE], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, "")

    def test_base_is_pinned(self) -> None:
        """Every stage starts at one base with a full version and distribution."""
        assert re.fullmatch(r"docker\.io/library/python:3\.\d+\.\d+-slim-[a-z]+", base_image())
        starts = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
        assert starts == ["${PYTHON_IMAGE}"] * 2

    def test_no_root_no_shell(self) -> None:
        """The program runs as a number that is not 0, and nothing at run time goes through a shell."""
        last = [word for word, _ in instructions()][::-1].index("FROM")
        final = dict(instructions()[-last:])
        assert final["USER"] == "65532:65532"
        for word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(final[word]), list)
        assert isinstance(json.loads(final["HEALTHCHECK"].partition("CMD ")[2]), list)
        assert "RUN" not in final

    def test_context_has_what_is_copied(self) -> None:
        """Every file that the recipe copies exists, and .dockerignore lets it through."""
        allowed = [
            line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line[:1] == "!"
        ]
        for word, rest in instructions():
            if word == "COPY" and not rest.startswith("--from"):
                for source in rest.split()[:-1]:
                    assert (REPOSITORY / source).exists()
                    assert any(Path(source).match(pattern) for pattern in allowed), source


class TestLock:
    @staticmethod
    def locked(name: str) -> dict[str, tuple[str, int]]:
        """Return version and number of hashes of each package in a lock file."""
        text = (DOCKER / name).read_text().replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
        pinned = (re.match(r"([a-z0-9-]+)==(\S+)", line) for line in lines)
        return {
            match[1]: (match[2], line.count("--hash=sha256:"))
            for match, line in zip(pinned, lines, strict=True)
            if match is not None
        }

    def test_packages(self) -> None:
        """The lock holds the program's dependencies with the extra auth, in allowed versions, with hashes."""
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
        wanted = project["dependencies"] + project["optional-dependencies"]["auth"]
        least = dict(re.fullmatch(r"([a-z-]+)>=([\d.]+)", line).groups() for line in wanted)  # type: ignore[union-attr]
        locked = self.locked("requirements.txt")

        assert set(locked) == set(least)
        for name, (version, hashes) in locked.items():
            assert hashes > 0, name
            assert [int(part) for part in version.split(".")] >= [
                int(part) for part in least[name].split(".")
            ]

    def test_build_tools(self) -> None:
        """What builds the wheel is locked, too."""
        locked = self.locked("requirements-build.txt")
        assert "hatchling" in locked
        assert all(hashes > 0 for _, hashes in locked.values())


class TestHealthcheck:
    @staticmethod
    def ask(url: str) -> subprocess.CompletedProcess[str]:
        """Run the check as the image does."""
        return subprocess.run(
            [sys.executable, "-S", DOCKER / "healthcheck.py"], env={"HEALTHCHECK_URL": url, "http_proxy": "http://x"},
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    @pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
    def test_answer(self, status: int, code: int) -> None:
        """The check succeeds exactly when the exporter says that it is healthy."""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.handle_request, daemon=True).start()
            assert self.ask(f"http://127.0.0.1:{server.server_port}/-/healthy").returncode == code

    def test_nobody_there(self) -> None:
        """Without an exporter the check fails with one line."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            done = self.ask(f"http://127.0.0.1:{taken.getsockname()[1]}/-/healthy")
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "Connection refused" in done.stderr


# --- the image itself


@dataclass
class Engine:
    """buildah and podman with a store of their own."""

    place: Path

    def call(self, tool: str, *arguments: str | Path, seconds: float = 600) -> str:
        """Run one of them to its end and return what it prints."""
        line = [
            tool, "--root", self.place / "store", "--runroot", self.place / "run",
            *(["--storage-driver", "overlay"]), *(["--runtime", "runc"] if tool == "podman" else []),
            *arguments,
        ]  # fmt: skip
        done = subprocess.run(line, capture_output=True, text=True, timeout=seconds, check=False)
        assert done.returncode == 0, f"{line}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done.stdout

    def build(self, recipe: Path, context: Path, tag: str, *options: str) -> None:
        """Build an image without a registry."""
        self.call(
            "buildah", "bud", "--pull-never", "--isolation", "chroot", "--network", "host",
            "--format", "docker", *options, "-f", recipe, "-t", tag, context,
        )  # fmt: skip

    def close(self) -> None:
        """Leave no mount behind."""
        subprocess.run(["umount", "-q", self.place / "store" / "overlay"], check=False)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Build the image once."""
    if not WANTED:
        pytest.skip("set CKPT_TEST_IMAGE=build to build and run the image")
    if os.geteuid() != 0 or not all(map(shutil.which, BUILDERS)):
        pytest.skip(f"needs root and {', '.join(BUILDERS)}")
    engine = Engine(tmp_path_factory.mktemp("image"))
    base = engine.place / "base"
    base.mkdir()
    tar = base / "rootfs.tar.gz"
    if WANTED == "build":
        packages = "python3,python3-venv,python3-pip,ca-certificates"
        subprocess.run(
            ["mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", tar],
            check=True, capture_output=True,
        )  # fmt: skip
    else:
        shutil.copy(WANTED, tar)
    (base / "Containerfile").write_text("FROM scratch\nADD rootfs.tar.gz /\n")
    try:
        engine.build(base / "Containerfile", base, base_image())
        # The package index as this machine reaches it.
        own = [Path("/etc/ssl/certs"), Path("/etc/pip.conf")]
        mounts = [part for path in own if path.exists() for part in ("-v", f"{path}:{path}:ro")]
        engine.build(RECIPE, REPOSITORY, "ckpt-exporter:test", "--build-arg", "VERSION=1.2.3", *mounts)
        yield engine
    finally:
        engine.close()


@dataclass
class Container:
    """A running exporter."""

    engine: Engine
    name: str
    url: str

    def scrape(self) -> Scrape:
        """Return what it exports."""
        return parse_scrape(get(f"{self.url}/metrics"))

    def inside(self, *line: str) -> str:
        """Run something in it."""
        return self.engine.call("podman", "exec", self.name, *line)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Return a directory that the training may write and the container may read."""
    directory = tmp_path / "ckpt"
    directory.mkdir()
    return directory


@contextlib.contextmanager
def running(engine: Engine, checkpoints: Path, *options: str) -> Iterator[Container]:
    """Run the image as its documentation says: read-only, no capabilities, 128 MiB."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = checkpoints.parent / "config.yml"
    config.write_text(
        f"directories: [{{name: x, path: {checkpoints}}}]\ndetect: {{quiet_seconds: 1, min_bytes: 1}}\n"
        f"history: {{path: null}}\nweb: {{listen_address: '127.0.0.1:{port}'}}\n"
    )
    config.chmod(0o644)
    name = f"ckpt-{port}"
    engine.call(
        "podman", "run", "--detach", "--name", name, "--read-only", "--cap-drop", "all",
        "--security-opt", "no-new-privileges", "--memory", "128m", "--network", "host", "--no-healthcheck",
        "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096",
        "-v", f"{checkpoints}:{checkpoints}:ro", "-v", f"{config}:/etc/ckpt-exporter/config.yml:ro",
        *options, "ckpt-exporter:test",
    )  # fmt: skip
    container = Container(engine, name, f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: _is_up(container), what="container up")
        yield container
    finally:
        engine.call("podman", "rm", "--force", name)


def _is_up(container: Container) -> bool:
    with contextlib.suppress(urllib.error.URLError):
        return container.scrape().get("ckpt_watch_up", dir="x", backend="inotify") is not None
    return False


@pytest.mark.timeout(600)  # the first of them builds the image
class TestImage:
    def test_metadata(self, engine: Engine) -> None:
        """The image says what it is, runs as 65532 and has a health check."""
        (image,) = json.loads(engine.call("podman", "image", "inspect", "ckpt-exporter:test"))
        config = image["Config"]
        assert config["User"] == "65532:65532"
        assert config["Labels"]["org.opencontainers.image.version"] == "1.2.3"
        assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
        assert image["HealthCheck" if "HealthCheck" in image else "Healthcheck"]["Test"][0] == "CMD"

    def test_small(self, engine: Engine) -> None:
        """All that is ours weighs less than 25 MB above the base."""
        sizes = {
            name: json.loads(engine.call("podman", "image", "inspect", name))[0]["Size"]
            for name in ("ckpt-exporter:test", base_image())
        }
        assert sizes["ckpt-exporter:test"] - sizes[base_image()] < 25_000_000

    def test_measures_a_save_through_a_read_only_mount(self, engine: Engine, checkpoints: Path) -> None:
        """Files written outside are a save inside, seen by inotify through the mount; it stops cleanly."""
        with running(engine, checkpoints) as container:
            wait_until(lambda: container.scrape().get("ckpt_watch_up", dir="x", backend="inotify") == 1)
            (checkpoints / "model.pt").write_bytes(bytes(1 << 20))
            wait_until(lambda: container.scrape().value("ckpt_saves_total", dir="x", result="complete") == 1)
            assert container.scrape().value("ckpt_save_bytes_total", dir="x") == 1 << 20
            assert container.inside("/usr/bin/id", "-u") == "65532\n"
            container.inside(
                "/usr/bin/env", f"HEALTHCHECK_URL={container.url}/-/healthy",
                "/opt/ckpt-exporter/bin/python", "-S", "/opt/ckpt-exporter/bin/healthcheck.py",
            )  # fmt: skip

            # podman kills after 5 s: then the status would be 137.
            engine.call("podman", "stop", "--time", "5", container.name)
            (state,) = json.loads(engine.call("podman", "inspect", container.name))
            assert state["State"]["ExitCode"] == 0
            assert not state["State"]["OOMKilled"]

    def test_unreadable_directory(self, engine: Engine, checkpoints: Path) -> None:
        """A directory that it may not read is a state: no crash, and `ckpt_watch_up` is 0."""
        checkpoints.chmod(0o700)
        with running(engine, checkpoints) as container:
            assert container.scrape().value("ckpt_watch_up", dir="x", backend="inotify") == 0

    def test_nothing_to_install_with(self, engine: Engine) -> None:
        """The program's environment has no pip."""
        listing = engine.call(
            "podman", "run", "--rm", "--network", "host", "--ulimit", "nofile=4096:4096", "--ulimit",
            "nproc=4096:4096", "--no-healthcheck", "--entrypoint", "/opt/ckpt-exporter/bin/python",
            "ckpt-exporter:test", "-c", "import importlib.util as u; print(u.find_spec('pip'))",
        )  # fmt: skip
        assert listing == "None\n"
