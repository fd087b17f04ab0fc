"""A published case with its storage swapped while it runs, and swapped back, as Prometheus would see it.

8 GPUs, a save of 65.6 GB each half hour of training (10,000 steps in 10 h, 20 saves), 178 s long on slow
storage and 94 s on fast. The ledger sees GPU readings and file events at recorded time and is scraped each
15 s. A second training, on the fast storage, doubles its model: saves of twice the bytes take twice the time.

GPUs are read every other second here, a quarter as often as live, to keep this short.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ckpt_exporter.ledger import Ledger
from ckpt_exporter.metrics.catalogue import metrics_of
from ckpt_exporter.metrics.collectors import collect_bubble, collect_gpus, collect_saves
from ckpt_exporter.metrics.families import Families
from ckpt_exporter.model import DetectSettings, DirectorySettings, Save, Snapshot
from tests.gpu_profiles import Profile, Stop, gpu_set, job, replace, save
from tests.gpu_recordings import UNIX
from tests.integration.rule_files import alerts, read_by
from tests.prometheus.test_published_case import ALL, SAVE_BYTES, STEPS_PER_SAVE, TRAINING_SECONDS, facts_of

SCRAPE_SECONDS = 15.0
SLOW_SECONDS, FAST_SECONDS = 178.0, 94.0
# What this is about, and what is drawn beside it.
ALERTS = ("CkptSaveBubbleRegression", "CkptBandwidthRegression", "CkptBubbleShareHigh")
CURVES = ("ckpt_last_save_end_timestamp_seconds", "instance_dir:ckpt_bubble_share:ratio1h")
WANTED = {name for alert in alerts() if alert.name in ALERTS for name in alert.names}.union(CURVES)
Labels = tuple[tuple[str, str], ...]
Samples = list[tuple[float, float]]


@dataclass(frozen=True)
class Phase:
    """So many saves of one length and size."""

    name: str
    saves: int
    save_seconds: float
    save_bytes: int = SAVE_BYTES

    @property
    def seconds(self) -> float:
        return self.saves * (TRAINING_SECONDS + self.save_seconds)


SWAPPED = (
    Phase("slow storage", 20, SLOW_SECONDS),
    Phase("fast storage", 20, FAST_SECONDS),
    Phase("slow again", 10, SLOW_SECONDS),
    Phase("fast again", 10, FAST_SECONDS),
)
DOUBLED = (
    Phase("65.6 GB", 12, FAST_SECONDS),
    Phase("131.2 GB", 8, 2 * FAST_SECONDS, 2 * SAVE_BYTES),
)


def ends_of(phases: Iterable[Phase]) -> list[float]:
    """Return when each phase ends, in seconds from the first step."""
    ends, end = [], 0.0
    for phase in phases:
        end += phase.seconds
        ends.append(end)
    return ends


def profile_of(phases: Iterable[Phase]) -> Profile:
    """Tell a training: at each save rank 0 writes while seven others spin."""
    stops: list[Stop] = []
    saves: list[Save] = []
    end = 0.0
    for phase in phases:
        for _ in range(phase.saves):
            start = end + TRAINING_SECONDS
            end = start + phase.save_seconds
            stops += [Stop((0,), start, end, "idle"), Stop(ALL[1:], start, end, "spin")]
            step = (len(saves) + 1) * STEPS_PER_SAVE
            told = save(start, end, name=f"step-{step}")
            saves.append(replace(told, bytes=phase.save_bytes, step=step))
    writers = tuple(job(ALL, t=s.start + 0.3) for s in saves)
    return Profile("swap", end + 60.0, stops=tuple(stops), saves=tuple(saves), writers=writers, hz=0.5)


class Scraped:
    """The samples of each series that rules read, with the times of their scrapes in seconds."""

    def __init__(self) -> None:
        self.series: dict[str, dict[Labels, Samples]] = defaultdict(lambda: defaultdict(list))
        self._wanted = read_by(WANTED)

    def scrape(self, t: float, instance: str, snapshot: Snapshot) -> None:
        """Take in what a scrape at ``t`` would have shown."""
        out = Families(entry for name in ("saves", "bubble", "gpu") for entry in metrics_of(name))
        for collect in (collect_saves, collect_bubble, collect_gpus):
            collect(snapshot, out)
        for family in out.collect():
            for sample in family.samples:
                if sample.name in self._wanted:
                    labels = (*sorted(sample.labels.items()), ("instance", instance), ("job", "ckpt"))
                    self.series[sample.name][labels].append((t, float(sample.value)))

    def openmetrics(self) -> Iterator[str]:
        """Write everything with timestamps, for Prometheus to take in as its own past."""
        for name, series in self.series.items():
            # Of an unknown type any name may be: the types play no part in rules.
            yield f"# TYPE {name} unknown\n"
            for labels, samples in series.items():
                written = ",".join(f'{key}="{value}"' for key, value in labels)
                for t, value in samples:
                    yield f"{name}{{{written}}} {value!r} {UNIX + t}\n"
        yield "# EOF\n"

    def promtool(self, instance: str) -> list[dict[str, str]]:
        """Write the series of one instance as a promtool test's input, from time 0."""
        return [
            {
                "series": name + "{" + ",".join(f'{k}="{v}"' for k, v in labels) + "}",
                "values": notation(samples),
            }
            for name, series in self.series.items()
            for labels, samples in series.items()
            if ("instance", instance) in labels
        ]


def notation(samples: Samples) -> str:
    """Write samples in promtool's notation: equal ones in a row as ``VALUExTIMES``, a lack as stale."""
    slots = {round(t / SCRAPE_SECONDS): value for t, value in samples}
    words: list[tuple[str, int]] = []
    for slot in range(max(slots) + 1):
        word = repr(slots[slot]) if slot in slots else "stale" if slot - 1 in slots else "_"
        if words and words[-1][0] == word:
            words[-1] = (word, words[-1][1] + 1)
        else:
            words.append((word, 1))
    # In this notation aXn is a and n more of it; _xn is n of them.
    return " ".join(w if n == 1 else f"_x{n}" if w == "_" else f"{w}x{n - 1}" for w, n in words)


def scrape_run(scraped: Scraped, instance: str, phases: tuple[Phase, ...]) -> list[Save]:
    """Let a ledger see a whole training, scraping it as a Prometheus would; return its saves."""
    profile, saves = profile_of(phases), list[Save]()
    ledger = Ledger(
        (DirectorySettings("d", "/data/d"),), DetectSettings(), unix_minus_t=UNIX, on_save=saves.append
    )
    ledger.feed(gpu_set(profile))
    next_scrape = 0.0
    for fact in facts_of(profile):
        while fact.t > next_scrape:
            scraped.scrape(next_scrape, instance, ledger.snapshot(next_scrape))
            next_scrape += SCRAPE_SECONDS
        ledger.feed(fact)
    return saves
