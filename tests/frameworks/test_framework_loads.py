"""Real frameworks load real checkpoints, from the storage and from the page cache."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import skip_without

from ckpt_exporter.sources.readers import readers_visible
from tests.integration.loading import Loading

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.timeout(360),
    pytest.mark.skipif(not readers_visible(), reason="needs to see other users' processes"),
]

TOLERANCE_SECONDS = 0.05
TOLERANCE_SHARE = 0.02
CACHED_TOLERANCE = 0.05

_WRITE = """
import sys, torch, safetensors.torch
root = sys.argv[1]
tensors = {f"layer{i}": torch.randn(4096, 4096) for i in range(6)}
torch.save(tensors, root + "/pytorch_model.bin")
safetensors.torch.save_file(tensors, root + "/model.safetensors")
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=8)
LlamaForCausalLM(config).save_pretrained(root + "/whole", max_shard_size="200MB")
"""
_LOAD = """
import sys, time, torch, safetensors.torch
opened = []
{imports}
begun = time.monotonic()
loaded = {load}
done = time.monotonic()
used = [float(tensor.sum()) for tensor in {tensors}]
# A mapped file is read when its tensors are used.
print(min(opened, default=begun), time.monotonic() if {mapped} else done, flush=True)
sys.stdin.read()
"""
# The model is built before the first file of weights is opened, which is where its load begins.
_TRANSFORMERS = """
from transformers import LlamaForCausalLM, modeling_utils
from safetensors import safe_open
def noting(*arguments, **options):
    opened.append(time.monotonic())
    return safe_open(*arguments, **options)
modeling_utils.safe_open = noting
"""
# What to do first, the call on the checkpoint's path, its tensors, its name there; the files that it reads.
CASES = {
    "torch": ("", "torch.load({path})", "loaded.values()", "pytorch_model.bin"),
    "torch_mapped": ("", "torch.load({path}, mmap=True)", "loaded.values()", "pytorch_model.bin"),
    "safetensors": ("", "safetensors.torch.load_file({path})", "loaded.values()", "model.safetensors"),
    "transformers": (
        _TRANSFORMERS,
        "LlamaForCausalLM.from_pretrained({path})",
        "loaded.parameters()",
        "whole",
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one checkpoint in each form."""
    skip_without("torch", "safetensors", "transformers")
    root = tmp_path_factory.mktemp("loads") / "checkpoint-7"
    root.mkdir()
    subprocess.run([sys.executable, "-W", "ignore", "-c", _WRITE, str(root)], check=True, capture_output=True)
    return root


@pytest.fixture
def loading(checkpoint: Path) -> Iterator[Loading]:
    watched = Loading(checkpoint.parent)
    yield watched
    watched.stop()


@pytest.mark.flaky(reruns=2)  # a machine that does other things, too, keeps a reader waiting
@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
@pytest.mark.parametrize("case", CASES)
def test_a_framework_loads(loading: Loading, checkpoint: Path, case: str, cold: bool) -> None:
    """Bytes and readers are exact, the duration is within 50 ms or 2 %, the cached share within 5 points."""
    imports, load, tensors, name = CASES[case]
    path = checkpoint / name
    loading.files = [str(file) for file in path.glob("*.safetensors")] or [str(path)]
    if cold:
        loading.cool()
    else:
        loading.warm()
    loading.start()
    program = _LOAD.format(
        imports=imports, load=load.format(path="sys.argv[1]"), tensors=tensors, mapped=case != "torch"
    )
    begun, done = loading.run(program, str(path))
    (found,) = loading.loads
    assert found.bytes == sum(Path(file).stat().st_size for file in loading.files)
    assert (found.files, found.readers) == (len(loading.files), 1)
    tolerance = max(TOLERANCE_SECONDS, TOLERANCE_SHARE * (done - begun))
    assert found.duration_seconds == pytest.approx(done - begun, abs=tolerance)
    assert begun <= found.start <= found.end <= done + tolerance
    if found.cached_ratio is None:
        pytest.skip("the machine is too busy: the look at the page cache came too late to tell")
    assert found.cached_ratio == pytest.approx(0.0 if cold else 1.0, abs=CACHED_TOLERANCE)
