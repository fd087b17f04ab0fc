"""Fragments of the configuration: what comes, what goes, and what a bad one does to the others."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.app import Exporter
from ckpt_exporter.cli import main
from ckpt_exporter.config import fragments as module
from ckpt_exporter.config.fragments import Fragments, fingerprint
from ckpt_exporter.config.schema import Config, GpuSettings, IncludeSettings, WebSettings
from ckpt_exporter.errors import ConfigError
from ckpt_exporter.model import DirectorySettings
from ckpt_exporter.sources.following import Following

if TYPE_CHECKING:
    from pathlib import Path

STATIC = DirectorySettings("static", "/data/static")
LLAMA = DirectorySettings("llama", "/scratch/llama")
VIT = DirectorySettings("vit", "/scratch/vit")


class Site:
    """A node with a main configuration, a directory of fragments and a clock."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.now = 100.0
        self.main = Config((STATIC,), include=IncludeSettings(str(place), 60.0))
        self.main_error: ConfigError | None = None
        self.fragments = Fragments(self._read_main, ("deepspeed",), clock=lambda: self.now)

    def _read_main(self) -> Config:
        if self.main_error is not None:
            raise self.main_error
        return self.main

    def put(self, file: str, *directories: DirectorySettings, text: str | None = None) -> None:
        """Add or replace a fragment the way a prolog does."""
        lines = [f"  - {{name: {directory.name}, path: {directory.path}}}" for directory in directories]
        hidden = self.place / f".{file}"
        hidden.write_text(text if text is not None else "\n".join(["directories:", *lines]) + "\n")
        hidden.rename(self.place / file)

    def take(self, file: str) -> None:
        """Remove a fragment."""
        (self.place / file).unlink()

    def names(self) -> list[str]:
        """Read the fragments and return the names of all directories."""
        return [directory.name for directory in self.fragments.reread().directories]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a node without fragments."""
    return Site(tmp_path)


class TestInForce:
    def test_adds_to_the_main_file(self, site: Site) -> None:
        """Directories of fragments stand behind those of the configuration, in the order of file names."""
        site.put("b.yml", VIT)
        site.put("a.yaml", LLAMA)

        assert site.fragments.read().directories == (STATIC, LLAMA, VIT)

    def test_other_files_do_not_count(self, site: Site) -> None:
        """Hidden files, other endings and what is not a regular file are left alone."""
        site.put("a.yml.tmp", LLAMA)
        (site.place / ".b.yml").write_text("half a frag")
        os.mkfifo(site.place / "c.yml")
        (site.place / "d.yml").mkdir()
        (site.place / "e.yml").symlink_to("nowhere")

        config = site.fragments.read()
        assert (config.directories, config.refused) == ((STATIC,), ())

    def test_missing_directory_is_no_fragment(self, site: Site) -> None:
        """A directory that is not there yet is a state: nothing is refused, and fragments count later."""
        site.place.rmdir()
        assert site.fragments.read().refused == ()
        assert not site.fragments.due()

        site.place.mkdir()
        site.put("a.yml", LLAMA)
        assert site.fragments.due()
        assert site.names() == ["static", "llama"]

    def test_same_entry_in_two_fragments(self, site: Site) -> None:
        """Two jobs that write to the same place share one directory, which stays until both are gone."""
        site.put("job-1.yml", LLAMA)
        site.put("job-2.yml", LLAMA)
        assert site.fragments.read().directories == (STATIC, LLAMA)

        site.take("job-1.yml")
        site.now += 1000
        assert site.names() == ["static", "llama"]
        assert not site.fragments.due()

    def test_linked_directory_that_is_swapped(
        self, site: Site, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """A fragment behind a link is read again when the link leads elsewhere, as in a mounted ConfigMap."""
        versions = tmp_path_factory.mktemp("versions")
        for version, directory in (("1", LLAMA), ("2", VIT)):
            (versions / version).mkdir()
            (versions / version / "f.yml").write_text(
                f"directories: [{{name: {directory.name}, path: {directory.path}}}]"
            )
        (versions / "data").symlink_to("1")
        (site.place / "f.yml").symlink_to(versions / "data" / "f.yml")
        assert site.fragments.read().directories == (STATIC, LLAMA)

        (versions / "new").symlink_to("2")
        (versions / "new").rename(versions / "data")
        assert site.fragments.due()
        assert VIT in site.fragments.reread().directories


class TestRefused:
    def test_alone(self, site: Site) -> None:
        """A bad fragment is told with file and key, and the others are in force."""
        site.put("bad.yml", text="directories:\n  - {name: x, paht: /x}\nweb: {}\n")
        site.put("good.yml", LLAMA)

        config = site.fragments.read()
        bad = site.place / "bad.yml"
        assert config.directories == (STATIC, LLAMA)
        assert config.refused == (
            f"{bad}: directories[0].paht: unknown key (got '/x'); did you mean 'path'?",
            f"{bad}: directories[0].path: is missing",
            f"{bad}: web: unknown key (got {{}}); known keys: directories",
        )

    @pytest.mark.parametrize("text", ["", "directories:\n", "directories: []\n", "a: [\n", "\x00"])
    def test_nothing_in_it(self, site: Site, text: str) -> None:
        """A fragment without directories is refused, not taken for an empty one."""
        site.put("empty.yml", text=text)

        config = site.fragments.read()
        assert config.directories == (STATIC,)
        assert len(config.refused) == 1

    def test_turned_bad(self, site: Site) -> None:
        """A fragment that was good keeps its directories when it turns bad, until it is gone."""
        site.put("a.yml", LLAMA)
        site.fragments.read()
        site.put("a.yml", text="directories: [")
        site.now += 1000

        assert site.fragments.due()
        config = site.fragments.reread()
        assert config.directories == (STATIC, LLAMA)
        assert len(config.refused) == 1

    def test_contradiction(self, site: Site) -> None:
        """Of two fragments that want one name or path the later is refused, whatever its file is called."""
        site.put("b.yml", LLAMA)
        site.fragments.read()
        site.put("a.yml", DirectorySettings("llama", "/scratch/other"))
        site.put("c.yml", DirectorySettings("other", "/data/static"))

        config = site.fragments.reread()
        assert config.directories == (STATIC, LLAMA)
        assert config.refused == (
            f"{site.place}/a.yml: directories[0].name: must be unique, b.yml has it (got 'llama')",
            (
                f"{site.place}/c.yml: directories[0].path: must be unique, the configuration has it"
                " (got '/data/static')"
            ),
        )

    def test_contradiction_resolved(self, site: Site) -> None:
        """A refused fragment comes into force when what it contradicted is gone, at once."""
        other = DirectorySettings("llama", "/scratch/other")
        site.put("a.yml", LLAMA)
        site.fragments.read()
        site.put("b.yml", other)
        site.fragments.reread()
        site.take("a.yml")

        assert site.fragments.due()
        config = site.fragments.reread()
        assert (config.directories, config.refused) == ((STATIC, other), ())

    def test_unreadable_directory(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """A directory that turns unreadable is told, and what was read before stays in force."""
        site.put("a.yml", LLAMA)
        site.fragments.read()

        def denied(_path: str) -> list[str]:
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patched:
            patched.setattr(module.os, "listdir", denied)
            config = site.fragments.reread()
        assert config.directories == (STATIC, LLAMA)
        assert config.refused == (f"{site.place}: cannot be read: Permission denied",)
        assert site.fragments.due()

    def test_too_many(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """More fragments than a node can have jobs are cut off, and that is told."""
        monkeypatch.setattr(module, "FRAGMENT_LIMIT", 1)
        site.put("a.yml", LLAMA)
        site.put("b.yml", VIT)

        config = site.fragments.read()
        assert config.directories == (STATIC, LLAMA)
        assert config.refused == (f"{site.place}: has more than 1 fragments, the rest is not read",)


class TestGone:
    def test_kept_for_a_while(self, site: Site) -> None:
        """A directory outlives its fragment by `keep_seconds`, and then goes without another change."""
        site.put("a.yml", LLAMA)
        site.fragments.read()
        site.take("a.yml")
        assert site.fragments.due()
        assert site.names() == ["static", "llama"]
        assert not site.fragments.due()

        site.now += 59
        assert not site.fragments.due()
        site.now += 1
        assert site.fragments.due()
        assert site.names() == ["static"]
        assert not site.fragments.due()

    def test_comes_back(self, site: Site) -> None:
        """A directory whose fragment comes back in time never went."""
        site.put("a.yml", LLAMA)
        site.fragments.read()
        site.take("a.yml")
        site.fragments.reread()
        site.now += 30
        site.put("b.yml", LLAMA)
        site.fragments.reread()
        site.now += 1000

        assert not site.fragments.due()
        assert site.names() == ["static", "llama"]

    def test_main_file_is_left_alone(self, site: Site) -> None:
        """A changed fragment does not bring an unfinished main file into force."""
        site.fragments.read()
        site.main_error = ConfigError(["c.yml: half done"])
        site.put("a.yml", LLAMA)

        assert site.names() == ["static", "llama"]
        with pytest.raises(ConfigError):
            site.fragments.read()
        assert site.names() == ["static", "llama"]


def test_fingerprint_sees_every_change(tmp_path: Path) -> None:
    """New content of the same length, a new owner's inode, a touch and a removal all show."""
    file = tmp_path / "a.yml"
    seen = []
    for change in (
        lambda: file.write_text("aaaa"),
        lambda: (os.utime(file, ns=(1, 1)), file.write_text("bbbb")),
        lambda: os.utime(file, ns=(5, 5)),
        lambda: (tmp_path / "n").write_text("bbbb") and (tmp_path / "n").rename(file),
        file.unlink,
    ):
        change()
        seen.append(fingerprint(str(tmp_path)))

    assert len(set(seen)) == len(seen)
    assert seen[-1] == ()


def test_check_reads_fragments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` counts the directories of fragments, and fails on a bad one."""
    (tmp_path / "conf.d").mkdir()
    fragment = tmp_path / "conf.d" / "a.yml"
    fragment.write_text("directories: [{name: llama, path: /scratch/llama}]")
    config = tmp_path / "c.yml"
    config.write_text(f"include: {{directory: {tmp_path}/conf.d}}")
    assert main(["check", f"--config.file={config}"]) == 0
    assert capsys.readouterr().out == f"{config}: ok (1 directory)\n"

    fragment.write_text("directories: 7")
    assert main(["check", f"--config.file={config}"]) == 2
    assert capsys.readouterr().err == f"{fragment}: directories: must be a list (got 7)\n"


def test_following_survives_a_failure() -> None:
    """A look that fails is told, and the next one notifies."""
    looks: list[int] = []
    notified = threading.Event()

    def due() -> bool:
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("a file system that answers nonsense")
        return True

    following = Following(due, notified.set, interval_seconds=0.001)
    following.start()
    assert notified.wait(10)
    following.stop()


class TestExporter:
    @staticmethod
    def exporter(site: Site) -> Exporter:
        """Return an exporter that is not started."""
        config = site.fragments.read()
        return Exporter(config)

    @pytest.fixture
    def site(self, tmp_path: Path) -> Site:
        """Return a node whose exporter needs neither GPU nor port."""
        site = Site(tmp_path)
        site.main = Config(
            (STATIC,),
            gpu=GpuSettings("none"),
            web=WebSettings("127.0.0.1:0"),
            include=IncludeSettings(str(tmp_path), 60.0),
        )
        return site

    def test_series_come_and_go(self, site: Site) -> None:
        """A fragment's directory is in the snapshot while it counts, and gone afterwards."""
        exporter = self.exporter(site)
        site.put("a.yml", LLAMA)
        exporter.follow(site.fragments)
        assert [d.name for d in exporter.snapshot().directories] == ["static", "llama"]

        site.take("a.yml")
        exporter.follow(site.fragments)
        site.now += 61
        exporter.follow(site.fragments)
        assert [d.name for d in exporter.snapshot().directories] == ["static"]

    def test_refused_shows_in_the_status(self, site: Site) -> None:
        """The reload counts as failed exactly while a fragment is refused, also from the start on."""
        site.put("a.yml", text="directories: [")
        exporter = self.exporter(site)
        assert not exporter.snapshot().config.successful

        site.put("a.yml", LLAMA)
        exporter.follow(site.fragments)
        assert exporter.snapshot().config.successful
        assert exporter.snapshot().config.success_unix > 0

    def test_good_fragment_does_not_hide_a_bad_file(self, site: Site) -> None:
        """After a reload of a bad file the status stays failed, whatever fragments do."""
        exporter = self.exporter(site)
        site.main_error = ConfigError(["c.yml: broken"])
        exporter.reload(site.fragments.read)
        site.put("a.yml", LLAMA)
        exporter.follow(site.fragments)
        assert not exporter.snapshot().config.successful
        assert [d.name for d in exporter.snapshot().directories] == ["static", "llama"]

        site.main_error = None
        exporter.reload(site.fragments.read)
        assert exporter.snapshot().config.successful
