"""How frameworks name, stage and commit checkpoints: data, and the one place that reads it.

Adding a layout is one entry in ``NAMES`` (how its checkpoints are called), one in ``LAYOUTS`` (what commits
them), and a trace that proves it. All functions take paths relative to the watched directory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal


@dataclass(frozen=True, slots=True)
class Layout:
    """What commits a save of one framework.

    ``inside`` matches the marker below the checkpoint, ``beside`` a pointer file in the directory that holds
    the checkpoint. Once a component matches ``evidence``, ``need`` says how much the marker matters:
    ``required`` (without it the save is incomplete), ``expected`` (waited for, unless saves here were seen
    to do without) or ``none`` (it only shortens the wait). ``settle_seconds`` is how long files of other
    ranks may still follow the marker; None where no barrier precedes it, so that quiet must decide.
    """

    name: str
    inside: re.Pattern[str] | None = None
    beside: re.Pattern[str] | None = None
    evidence: re.Pattern[str] | None = None
    need: Literal["required", "expected", "none"] = "none"
    settle_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Name:
    """One way of calling a checkpoint.

    ``pattern`` has the groups ``base`` (the name that stays once the checkpoint is published), ``step``
    where the name holds one, and ``before``/``after``: what marks it as staged. ``counts_steps`` is False
    where the number is not a training step.
    """

    layout: str
    pattern: re.Pattern[str]
    counts_steps: bool = True


@dataclass(frozen=True, slots=True)
class Unit:
    """The checkpoint that a path belongs to.

    ``key`` is the checkpoint's published relative path, ``component`` the path below it ('' if the path is
    the checkpoint itself), ``staged`` whether the present name is one that is not yet published.
    """

    key: str
    layout: str
    step: int | None
    staged: bool
    component: str


def _rx(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        # The state file is written last; other ranks' random states may land after it (no barrier).
        Layout(
            "hf_trainer",
            inside=_rx(r"^(?:trainer_state\.json|CHECKPOINT_COMPLETE)$"),
            # No scaler.pt: accelerate writes one, too, and scripts have it write into checkpoint-N.
            evidence=_rx(
                r"(?:^|/)(?:training_args\.bin|optimizer\.pt|scheduler\.pt"
                r"|rng_state[^/]*\.pth|trainer_state\.json)$"
            ),
            need="required",
            settle_seconds=3.0,
        ),
        Layout("accelerate"),
        # ZeRO-1/2 write `latest` with no barrier: it was seen 1.9 s before another rank's shard was created.
        Layout(
            "deepspeed",
            beside=_rx(r"^latest$"),
            evidence=_rx(r"_(?:model|optim)_states\.pt$"),
            need="expected",
        ),
        Layout(
            "verl",
            beside=_rx(r"^latest_checkpointed_iteration\.txt$"),
            evidence=_rx(r"(?:^|/)(?:model|optim|extra_state)_(?:world_size_\d+_)?rank_\d+\.pt$|\.distcp$"),
            need="expected",
            settle_seconds=1.0,
        ),
        Layout(
            "megatron",
            beside=_rx(r"^latest_checkpointed_iteration\.txt$"),
            evidence=_rx(r"\.distcp$|(?:^|/)(?:model_optim_rng|distrib_optim)\.pt$"),
            need="expected",
            settle_seconds=1.0,
        ),
        Layout("nvrx_local"),
        Layout(
            "dcp",
            inside=_rx(r"(?:^|/)\.metadata$"),
            evidence=_rx(r"\.distcp$"),
            need="required",
            settle_seconds=2.0,
        ),
        Layout(
            "orbax",
            inside=_rx(r"^commit_success\.txt$"),
            evidence=_rx(r"^_CHECKPOINT_METADATA$|(?:^|/)manifest\.ocdbt$"),
            need="expected",
            settle_seconds=1.0,
        ),
        Layout("composer", beside=_rx(r"^latest-rank\d+[^/]*$"), settle_seconds=2.0),
        Layout("lightning"),
        Layout("nemo", settle_seconds=1.0),
        Layout(
            "dlrover",
            beside=_rx(r"^dlrover_latest\.txt$"),
            evidence=_rx(r"(?:^|/)rank_\d+\.pt$"),
            need="expected",
            settle_seconds=1.0,
        ),
        Layout(
            "tensorflow",
            beside=_rx(r"^checkpoint$"),
            evidence=_rx(r"\.data-\d{5}-of-\d{5}$|\.tempstate\d+$"),
            need="expected",
            settle_seconds=1.0,
        ),
        Layout("torchsnapshot", inside=_rx(r"^\.snapshot_metadata$"), settle_seconds=1.0),
        Layout("keras"),
        Layout("mindspore"),
        Layout("safetensors"),
        Layout("torch_save"),
        Layout("generic"),
    )
}

LAYOUT_NAMES: tuple[str, ...] = tuple(LAYOUTS)

# Every sharded PyTorch checkpoint, whatever directory it is part of, is readable only with its .metadata.
SHARDED_DATA = _rx(r"(?:^|/)__\d+_\d+\.distcp$")
SHARDED_COMMIT = _rx(r"(?:^|/)(?:__\d+)?\.metadata$")

_AFTER = (
    r"(?P<after>\.orbax-checkpoint-tmp(?:-\d+)?|\.(?:tmp|temp|incomplete|partial|part|staging|dirty)"
    r"|[-_](?:tmp|temp|incomplete)(?:[-_]?[0-9a-f-]{8,})?)?"
)
_BEFORE = r"(?:^|/)(?P<before>\.?(?:tmp|temp|staging|incomplete)[-_.])?"
_END = r"(?=/|$)"


def _directory(layout: str, base: str, *, counts_steps: bool = True) -> Name:
    return Name(layout, _rx(f"{_BEFORE}(?P<base>{base}){_AFTER}{_END}"), counts_steps)


# The outermost (leftmost) match decides; at the same place the earlier entry does.
NAMES: tuple[Name, ...] = (
    # One file a rank, each below a directory named by the rank: the rank is not part of the save's name.
    Name(
        "nvrx_local",
        _rx(r"(?:^|/)(?:\d+/)?(?P<base>iter_(?P<step>\d{7}))_\d+_local(?P<after>\.dirty)?\.pt$"),
    ),
    _directory("megatron", r"iter_(?P<step>\d{7,})"),
    _directory("deepspeed", r"global_step(?P<step>\d+)"),
    _directory("verl", r"global_step_(?P<step>\d+)"),
    Name(
        "hf_trainer",
        _rx(f"{_BEFORE}(?P<base>checkpoint-(?P<step>\\d+)(?:-?steps?)?)(?:-merged)?{_AFTER}{_END}"),
    ),
    # A counter of saves, not a training step.
    _directory("accelerate", r"checkpoint_(?P<step>\d+)", counts_steps=False),
    Name(
        "dlrover",
        _rx(r"(?:^|/)(?P<before>\._dlrover_ckpt_stage/)(?P<base>(?P<step>\d+))(?:\.done)?(?=/|$)"),
    ),
    Name(
        "orbax",
        _rx(
            r"(?:^|/)(?P<base>(?:[A-Za-z]\w*?_)?(?P<step>\d+))"
            r"(?P<after>\.orbax-checkpoint-tmp(?:-\d+)?)(?=/|$)"
        ),
    ),
    _directory("composer", r"ep\d+-ba(?P<step>\d+)(?:-rank\d+)?(?:\.(?:pt|tar)(?:\.\w+)?)?"),
    Name("lightning", _rx(r"(?:^|/)(?P<base>(?:[^/]*[^/A-Za-z])?step=(?P<step>\d+)[^/]*?\.ckpt)(?=/|$)")),
    # NeMo: an empty sibling `NAME-unfinished` stands beside the directory while it is written.
    Name(
        "nemo",
        _rx(r"(?:^|/)(?P<base>[^/]*[^/A-Za-z]step=(?P<step>\d+)[^/]*?)(?:-unfinished$|(?=/))"),
    ),
    Name(
        "tensorflow",
        _rx(
            r"(?:^|/)(?P<base>[^/]+-(?P<step>\d+))(?:(?P<after>_temp)(?=/|$)|\.data-\d{5}-of-\d{5}$|\.index$)"
        ),
    ),
    Name(
        "mindspore",
        _rx(
            r"(?:^|/)(?P<base>(?!checkpoint_|ckpt_)[^/]+-\d+_(?P<step>\d+))"
            r"(?:\.ckpt|\.safetensors|(?P<after>\.tmp))$"
        ),
    ),
    _directory("dcp", r"step[-_]?(?P<step>\d+)"),
    _directory("generic", r"(?:[A-Za-z]\w*[-_])?(?:step|iteration|iter)[-_=]?(?P<step>\d+)"),
    _directory("generic", r"(?:ckpt|chkpt|checkpoint|snapshot|epoch)s?[-_.=]?(?P<step>\d+)(?:-?steps?)?"),
)

# Orbax and DLRover publish under a bare number. Ranks are bare numbers too, so this is the last resort, and
# small numbers count only with evidence.
_NUMERIC = _rx(r"(?:^|/)(?P<base>(?P<step>\d+))(?P<after>\.(?:tmp|temp|incomplete|partial|staging))?(?=/)")
_NUMERIC_EVIDENCE = _rx(r"^(?:_CHECKPOINT_METADATA|commit_success\.txt|rank_\d+\.pt|__\d+_\d+\.distcp)$")

POINTER = _rx(
    r"(?:^|/)(?:latest|checkpoint|latest_checkpointed_iteration\.txt|dlrover_latest\.txt)"
    r"(?:[._-]?tmp[-_.]?[0-9a-f-]*)?$"
)

MAX_POINTER_BYTES = 64 * 1024

# Small companions; rewriting one is no new save of the checkpoint.
SIDECAR = _rx(
    r"(?:\.(?:json|jsonl|txt|ya?ml|md|py|toml|cfg|ini|csv|log)|(?:^|/)manifest\.ocdbt|METADATA"
    r"|(?:^|/)(?:__\d+)?\.metadata|(?:^|/)checkpoint|(?:^|/)latest)(?:\.tmp[0-9a-f]*|\.__lock)?$"
)

TEMPORARY = _rx(
    r"(?:^|/)(?:\.tmp[A-Za-z0-9_]{6,8}|tmp[a-z0-9_]{8}|\.?(?:tmp|temp)[-_.][^/]+"
    r"|[^/]+(?:\.(?:tmp|temp|part|partial|incomplete|inprogress|writing|dirty)(?:[-_.]?[0-9a-f]{4,})?"
    r"|\.tempstate\d+|\.__lock|_tmp_[0-9a-f-]{8,}|\.dirty\.pt|~))$"
)

NOISE = _rx(
    r"(?:^|/)(?:wandb|mlruns|swanlog|\.aim|\.git|__pycache__|tensorboard|\.ipynb_checkpoints|profiler"
    # What `bench` writes is no checkpoint of a training: it would shift every figure of the directory.
    r"|ckpt-exporter-bench-[^/]+)/"
    r"|(?:^|/)events\.out\.tfevents\.[^/]*$"
    r"|(?:^|/)(?:trainer_log\.jsonl|running_log\.txt|llamaboard_config\.yaml|training_loss\.png"
    r"|logging\.jsonl|metrics\.csv|progress\.txt|nohup\.out|output\.log|slurm-[^/]*\.out|core\.\d+)$"
    r"|(?:\.log|\.out|\.err|\.swp|\.nsys-rep|\.ncu-rep|\.arrow|\.idx|\.lock|\.pt\.trace\.json(?:\.gz)?"
    r"|\.png|\.jpe?g|\.mp4|\.wandb)$"
    r"|(?:^|/)\.nfs[0-9a-f]+$|(?:^|/)cache-[^/]*$"
)

_STEP_WORD = _rx(
    r"(?:^|[^A-Za-z])(?:global[-_]?)?(?:step|iter|iteration|batch|update)s?[-_=]?(\d+)",
)
_EPOCH_WORD = _rx(r"(?:^|[^A-Za-z])(?:epoch|ep)[-_=]?(\d+)")
_LAST_NUMBER = _rx(r"(?:^|[-_.])([A-Za-z]+)s?[-_.](\d+)$")
# A number behind another word is a rank, a shard, a layer, a part: no step.
_STEP_NOUNS = re.compile(
    r"ck|ckpt|chk|chkpt|checkpoint|cp|model|net|network|weights|w|snapshot|save|saved|unet|lora|adapter"
    r"|generator|discriminator|policy|actor|critic|agent|ema|optim|optimizer|opt",
    re.IGNORECASE,
)
_STEM = _rx(
    r"(?:\.(?:weights\.h5|keras|h5|ckpt|pth?|bin|safetensors|npz|npy|msgpack|pkl|onnx|gguf|tar|zip|gz|zst"
    r"|model|params|pdparams|state|dat|data))+$"
)

_SUFFIX_LAYOUTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (_rx(r"\.distcp$"), "dcp"),
    (_rx(r"(?:^|/)(?:_CHECKPOINT_METADATA|manifest\.ocdbt)$"), "orbax"),
    (_rx(r"_(?:model|optim)_states\.pt$"), "deepspeed"),
    (_rx(r"(?:^|/)\.snapshot_metadata$"), "torchsnapshot"),
    (_rx(r"\.keras$|\.weights\.h5$|\.h5$"), "keras"),
    (_rx(r"\.safetensors$"), "safetensors"),
    (_rx(r"\.(?:pt|pth|bin|ckpt)$"), "torch_save"),
)
# What a component may say about a checkpoint whose name says nothing of its framework.
UNSPECIFIC_LAYOUTS = frozenset(("generic", "safetensors", "torch_save", "dcp"))


# Programs that copy what somebody else saved.
COPY_COMMANDS = frozenset(
    (
        "cp", "rsync", "mv", "tar", "scp", "sftp", "rclone", "aws", "gsutil", "dcp", "fpsync",
        "wget", "curl", "aria2c", "azcopy", "s5cmd", "unzip", "git-lfs",
    )
)  # fmt: skip

# One of the parts into which a model is cut; a model lacks something without all of them.
PART = _rx(r"-\d{5}-of-(?P<parts>\d{5})(?=\.)")


def is_ignored(path: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a user's pattern excludes a relative path: by its last name, or by the whole path."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(name, pattern) or fnmatchcase(path, pattern) for pattern in patterns)


def parent_of(path: str) -> str:
    """Return the directory of a relative path; '' at the top."""
    return path.rpartition("/")[0]


def is_noise(path: str) -> bool:
    """Tell whether a relative path is no part of any checkpoint: logs, traces, caches, trackers."""
    return NOISE.search(path) is not None


def is_temporary(path: str) -> bool:
    """Tell whether a relative path's last name is one that writers use before they publish."""
    return TEMPORARY.search(path) is not None


def is_pointer(path: str) -> bool:
    """Tell whether a relative path is a pointer file such as ``latest``: a signal, not data."""
    return POINTER.search(path) is not None


def locate(path: str, layout: str = "auto") -> Unit | None:
    """Find the checkpoint that a relative path belongs to by its name; None if no name matches.

    The outermost match wins: ``checkpoint-500/global_step500/x`` is part of ``checkpoint-500``. With a
    ``layout`` other than ``auto`` only that layout's names are tried.
    """
    best: tuple[int, re.Match[str], Name] | None = None
    for name in NAMES:
        if layout not in ("auto", name.layout):
            continue
        match = name.pattern.search(path)
        if match and (best is None or match.start() < best[0]):
            best = (match.start(), match, name)
    if best is None:
        return _locate_numeric(path, layout)
    return _unit(path, best[1], best[2])


def _step(digits: str) -> int | None:
    """Read a step; None beyond 18 digits, to which no training counts and which no history holds."""
    return int(digits) if len(digits) <= 18 or len(digits.lstrip("0")) <= 18 else None


def _unit(path: str, match: re.Match[str], name: Name) -> Unit:
    prefix = path[: match.start()]
    base = match["base"]
    if name.layout == "composer":
        base = re.sub(r"-rank\d+", "", base)
    groups = match.groupdict()
    return Unit(
        key=f"{prefix}/{base}" if prefix else base,
        layout=name.layout,
        step=_step(match["step"]) if name.counts_steps else None,
        staged=bool(groups.get("before") or groups.get("after")),
        component=path[match.end() :].lstrip("/"),
    )


def _locate_numeric(path: str, layout: str) -> Unit | None:
    if layout not in ("auto", "orbax", "dlrover", "dcp"):
        return None
    match = _NUMERIC.search(path)
    if match is None:
        return None
    component = path[match.end() :].lstrip("/")
    step = _step(match["step"])
    staged = match["after"] is not None
    if (
        step is not None
        and step < 10
        and layout == "auto"
        and not staged
        and not _NUMERIC_EVIDENCE.search(component)
    ):
        return None
    key = path[: match.end("base")]
    return Unit(key, layout if layout != "auto" else "generic", step, staged=staged, component=component)


def step_of_name(path: str) -> int | None:
    """Read the training step (or epoch) from the name of a single checkpoint file; None if it has none.

    Numbers of ranks, shards, layers and versions are no steps.
    """
    stem = _STEM.sub("", strip_temporary(path.rpartition("/")[2]))
    if re.search(r"\d{5}-of-\d{5}", stem):
        stem = re.sub(r"-?\d{5}-of-\d{5}", "", stem)
    word = _STEP_WORD.search(stem) or _EPOCH_WORD.search(stem)
    if word:
        return _step(word[1])
    last = _LAST_NUMBER.search(stem)
    if last and _STEP_NOUNS.fullmatch(last[1]):
        return _step(last[2])
    return None


def strip_temporary(name: str) -> str:
    """Remove what marks a name as temporary, so that ``ck-15.pt.tmp`` and ``ck-15.pt`` read alike."""
    name = re.sub(r"^\.?(?:tmp|temp)[-_.](?=.)", "", name)
    return re.sub(
        r"\.(?:tmp|temp|part|partial|incomplete|inprogress|writing|dirty)(?:[-_.]?[0-9a-f]{4,})?$"
        r"|_tmp_[0-9a-f-]{8,}$|~$",
        "",
        name,
    )


def layout_of_component(path: str) -> str | None:
    """Name the layout that a file's own name speaks for, or None."""
    for pattern, layout in _SUFFIX_LAYOUTS:
        if pattern.search(path):
            return layout
    return None
