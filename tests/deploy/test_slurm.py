"""Slurm's prolog and epilog, run as slurmd runs them, beside a daemon that follows their fragments."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from ckpt_exporter.config.load import load_fragment
from tests.integration.daemon import REPOSITORY, Daemon, launch, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SLURM = REPOSITORY / "deploy/slurm"
TOOLS = ("runuser", "flock", "pgrep", "timeout")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs prologs as root"),
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"one of {', '.join(TOOLS)} is missing"),
]


class Node:
    """A compute node: its site file, its scratch tree and its fragments."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.scratch = base / "scratch"
        self.scratch.mkdir()
        self.fragments = base / "conf.d"
        self.site = base / "slurm.conf"
        self.configure(CKPT_PATH=f"{self.scratch}/%a/%u/ckpt")

    def configure(self, **settings: str) -> None:
        """Write the site file."""
        known = {"CKPT_FRAGMENTS": str(self.fragments), "CKPT_ROOTS": str(self.scratch), **settings}
        self.site.write_text("".join(f'{key}="{value}"\n' for key, value in known.items()))

    def script(self, name: str, job: int, **variables: str) -> str:
        """Run a script with the few variables that slurmd gives it; it must not fail. Return what it says."""
        environment = {
            "CKPT_EXPORTER_SLURM_CONF": str(self.site),
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_USER": "root",
            "SLURM_JOB_ACCOUNT": "physics",
            **variables,
        }
        done = subprocess.run(
            [SLURM / name], env=environment, capture_output=True, text=True, timeout=30, check=False
        )
        assert (done.returncode, done.stdout) == (0, "")
        return done.stderr

    def prolog(self, job: int, comment: str = "", **variables: str) -> str:
        """Start a job here."""
        return self.script("prolog.sh", job, SLURM_JOB_COMMENT=comment, **variables)

    def epilog(self, job: int) -> str:
        """End a job here."""
        return self.script("epilog.sh", job)

    def watched(self) -> dict[str, tuple[str, str]]:
        """Return name and path of the directory in each fragment, as the daemon reads it."""
        found = {}
        for file in sorted(self.fragments.glob("*.yml")):
            (directory,) = load_fragment(str(file), ())
            found[file.name] = (directory.name, directory.path.removeprefix(f"{self.scratch}/"))
        return found


@pytest.fixture
def node() -> Iterator[Node]:
    """Give a node on which no job has run; other users may enter it, unlike pytest's own places."""
    with tempfile.TemporaryDirectory(prefix="ckpt-slurm-") as base:
        os.chmod(base, 0o755)
        yield Node(Path(base))


class TestFragments:
    def test_comment_says_where(self, node: Node) -> None:
        """A job's comment names its directory and its label, among other words; the epilog takes it back."""
        node.prolog(7, f"wandb=off ckpt={node.scratch}/me/run7 ckpt_name=llama")
        assert node.watched() == {"job-7.yml": ("llama", "me/run7")}

        node.epilog(7)
        assert node.watched() == {}
        assert [path.name for path in node.fragments.iterdir()] == [".lock"]

    def test_site_says_where(self, node: Node) -> None:
        """Without a comment the site's rule decides, and the label is the account, not the job."""
        node.prolog(8)
        assert node.watched() == {"job-8.yml": ("physics", "physics/root/ckpt")}

    def test_no_rule(self, node: Node) -> None:
        """Where neither comment nor site say where, nothing is watched and nothing is complained about."""
        node.configure()
        assert node.prolog(9) == ""
        assert node.watched() == {}

    def test_array_shares_one_label(self, node: Node) -> None:
        """Tasks of an array that write to one place are one directory, until the last has ended."""
        for job in (10, 11):
            node.prolog(job)
        node.epilog(10)
        assert node.watched() == {"job-11.yml": ("physics", "physics/root/ckpt")}

    def test_same_name_elsewhere(self, node: Node) -> None:
        """Jobs with one name and different places get numbered names, which are used again later."""
        for job in (20, 21, 22):
            node.prolog(job, f"ckpt={node.scratch}/run{job}")
        assert [name for name, _ in node.watched().values()] == ["physics", "physics-2", "physics-3"]

        node.epilog(21)
        node.prolog(23, f"ckpt={node.scratch}/run23")
        assert node.watched()["job-23.yml"] == ("physics-2", "run23")

    def test_jobs_that_start_together(self, node: Node) -> None:
        """Prologs that run at the same time never give one name to two places."""
        jobs = range(30, 38)
        with ThreadPoolExecutor(len(jobs)) as pool:
            list(pool.map(lambda job: node.prolog(job, f"ckpt={node.scratch}/run{job}"), jobs))

        names = [name for name, _ in node.watched().values()]
        assert sorted(names) == ["physics", *(f"physics-{number}" for number in range(2, 9))]

    def test_requeued(self, node: Node) -> None:
        """A job that starts again with the same id replaces its own fragment under its own name."""
        node.prolog(40, f"ckpt={node.scratch}/a")
        node.prolog(40, f"ckpt={node.scratch}/b")
        assert node.watched() == {"job-40.yml": ("physics", "b")}

    def test_label_is_harmless(self, node: Node) -> None:
        """Whatever a user writes becomes a plain label of bounded length."""
        node.prolog(41, f"ckpt={node.scratch}/x ckpt_name=a'b:\\{{}}\"é" + "y" * 200)
        name, _ = node.watched()["job-41.yml"]
        assert name.startswith("a_b")
        assert len(name) == 64
        assert set(name) <= set("ab_y")

    def test_path_is_taken_literally(self, node: Node) -> None:
        """A path with quotes and YAML's characters is the path, not YAML."""
        node.prolog(42, f"ckpt={node.scratch}/it's:#{{x}}&%u")
        assert node.watched()["job-42.yml"][1] == "it's:#{x}&%u"


class TestRefused:
    @pytest.mark.parametrize(
        ("path", "why"),
        [
            ("/etc", "not below one of CKPT_ROOTS"),
            ("{scratch}", "not below one of CKPT_ROOTS"),
            ("{scratch}/", "not below one of CKPT_ROOTS"),
            ("{scratch}x/a", "not below one of CKPT_ROOTS"),
            ("relative", "not below one of CKPT_ROOTS"),
            ("{scratch}/../etc", "not a plain absolute path"),
            ("{scratch}/..", "not a plain absolute path"),
            ("{scratch}/*", "not a plain absolute path"),
            ("{scratch}/a\x07", "not a plain absolute path"),
        ],
    )
    def test_places_of_others(self, node: Node, path: str, why: str) -> None:
        """A job cannot have the daemon look anywhere but into plain places below the site's roots."""
        assert why in node.prolog(50, f"ckpt={path.format(scratch=node.scratch)}")
        assert node.watched() == {}

    def test_not_the_users(self, node: Node) -> None:
        """A job cannot have watched what its user may not write, existing or not."""
        user = pwd.getpwnam("nobody").pw_name
        (node.scratch / "secret").mkdir(mode=0o700)
        (node.scratch / "open").mkdir()
        (node.scratch / "open").chmod(0o777)

        for path in ("secret", "secret/below", "new"):
            told = node.prolog(51, f"ckpt={node.scratch}/{path}", SLURM_JOB_USER=user)
            assert f"is not writable for {user}" in told
        assert node.watched() == {}
        assert node.prolog(51, f"ckpt={node.scratch}/open/new/one", SLURM_JOB_USER=user) == ""
        assert node.watched() == {"job-51.yml": ("physics", "open/new/one")}

    def test_nothing_fails_the_node(self, node: Node) -> None:
        """No site file, a broken one, no job id, no room for fragments: told, and the node stays up."""
        node.site.unlink()
        assert "nothing is watched" in node.prolog(52)
        node.epilog(52)
        node.site.write_text("CKPT_ROOTS=$(\n")
        node.prolog(52)
        node.epilog(52)
        node.configure()
        for job in ("", "12;rm", "../x"):
            assert "no job id" in node.script("prolog.sh", 1, SLURM_JOB_ID=job)
            node.script("epilog.sh", 1, SLURM_JOB_ID=job)
        node.fragments.write_text("a file")
        assert "nothing is watched" in node.prolog(53, f"ckpt={node.scratch}/x")


class TestStale:
    @staticmethod
    def age(file: Path, minutes: float) -> None:
        """Make a fragment that old."""
        when = time.time() - minutes * 60
        os.utime(file, (when, when))

    def test_left_behind(self, node: Node) -> None:
        """The next prolog removes an old fragment whose job has no process, and no other."""
        for job in (60, 61, 62):
            node.prolog(job)
        for job in (60, 61):
            self.age(node.fragments / f"job-{job}.yml", 1441)
        (node.fragments / "site.yml").write_text("directories: [{name: site, path: /site}]")
        self.age(node.fragments / "site.yml", 100_000)
        # What a job with a step on this node looks like.
        step = subprocess.Popen(["slurmstepd: [61.batch]", "60"], executable=shutil.which("sleep"))
        try:
            assert "removed the fragment of job 60" in node.prolog(63)
        finally:
            step.kill()
            step.wait()
        assert sorted(node.watched()) == ["job-61.yml", "job-62.yml", "job-63.yml", "site.yml"]


class TestWithTheDaemon:
    @pytest.fixture
    def daemon(self, node: Node) -> Iterator[Daemon]:
        """Start a daemon that has only fragments to watch, and keeps a directory for a second."""
        node.fragments.mkdir()
        config = node.base / "config.yml"
        document = {
            "detect": {"quiet_seconds": 1, "min_bytes": 1},
            "history": {"path": None},
            "include": {"directory": str(node.fragments), "keep_seconds": 1},
        }
        config.write_text(yaml.safe_dump(document))
        with launch(
            node.base / "daemon.log", "run", f"--config.file={config}", "--gpu.backend=none"
        ) as daemon:
            yield daemon

    def test_job_from_start_to_end(self, node: Node, daemon: Daemon) -> None:
        """A job's directory is watched from prolog to epilog without a signal, and its series go with it."""
        assert daemon.scrape().series(dir="physics") == {}
        place = node.scratch / "physics/root/ckpt"
        place.mkdir(parents=True)
        node.prolog(70)
        daemon.wait_watching("physics")
        (place / "model.pt").write_bytes(bytes(4096))
        daemon.expect("physics", complete=1, size_bytes=4096, files=1)

        node.epilog(70)
        wait_until(lambda: not daemon.scrape().series(dir="physics"), what="series gone")

    def test_jobs_beside_a_save(self, node: Node, daemon: Daemon) -> None:
        """A job that comes and goes during another job's save changes nothing about that save."""
        for name in ("a", "b"):
            (node.scratch / name).mkdir()
        node.prolog(80, f"ckpt={node.scratch}/a ckpt_name=a")
        daemon.wait_watching("a")
        with (node.scratch / "a/model.pt").open("wb", buffering=0) as file:
            file.write(bytes(1000))
            wait_until(lambda: daemon.scrape().value("ckpt_saves_in_progress", dir="a") == 1, what="save")
            node.prolog(81, f"ckpt={node.scratch}/b ckpt_name=b")
            daemon.wait_watching("b")
            node.epilog(81)
            wait_until(lambda: not daemon.scrape().series(dir="b"), what="series gone")
            assert daemon.scrape().value("ckpt_saves_in_progress", dir="a") == 1
            file.write(bytes(1000))
        daemon.expect("a", complete=1, size_bytes=2000, files=1)
        assert daemon.scrape().value("ckpt_written_bytes_total", dir="a") == 2000

    def test_bad_fragment_beside_a_good_one(self, node: Node, daemon: Daemon) -> None:
        """A bad fragment is told in the log and a metric, alone, and forgiven when it is gone."""
        metric = "ckpt_config_last_reload_successful"
        bad = node.fragments / "job-71.yml"
        bad.write_text("directories:\n  - {name: x, path: nowhere}\n")
        node.prolog(72, f"ckpt={node.scratch}/x")
        (node.scratch / "x").mkdir()
        daemon.wait_watching("physics")

        assert daemon.scrape().value(metric) == 0
        (line,) = daemon.logged("configuration fragment refused")
        assert line["problem"] == f"{bad}: directories[0].path: must be an absolute path (got 'nowhere')"
        bad.unlink()
        wait_until(lambda: daemon.scrape().value(metric) == 1, what="reload successful")
