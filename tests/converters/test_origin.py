"""The fingerprint of a conversion: it changes with the code that builds graphs, and with nothing else."""

import shutil
from pathlib import Path

import pytest

from converters.conversion import ROOT, graph_fingerprint, graph_sources

LIBRARIES = ("1.0",)


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the source, to be edited and restored."""
    root = tmp_path_factory.mktemp("source")
    for package in ("ane", "converters"):
        shutil.copytree(ROOT / package, root / package, ignore=lambda folder, names: [
            name for name in names if not (name.endswith(".py") or (Path(folder) / name).is_dir())])
    return root


@pytest.mark.parametrize(("file", "changes"), [
    ("ane/models/tortoise/networks/univnet.py", True), ("ane/models/whisper/networks/text_decoder.py", True),
    ("ane/models/vocoders/hifigan.py", True), ("converters/functions.py", True), ("converters/blocks.py", True),
    ("converters/vocoders/hifigan.py", True), ("converters/tortoise/functions.py", True),
    ("converters/coreml/merge.py", True), ("converters/onnx/graph.py", True),
    ("converters/whisper/onnx_graphs.py", True), ("converters/decoder_graphs.py", True),
    ("converters/proof/lint.py", False), ("converters/proof/parity.py", False),
    ("converters/tortoise/probes.py", False), ("converters/conversion.py", False),
    ("ane/cli.py", False)])
def test_it_changes_with_a_network_and_with_its_converter_alone(copy, file, changes):
    path, before = copy / file, graph_fingerprint(LIBRARIES, copy)
    content = path.read_text(encoding="utf-8")
    path.write_text(content + "\n# changed\n", encoding="utf-8")
    try:
        assert (graph_fingerprint(LIBRARIES, copy) != before) == changes
    finally:
        path.write_text(content, encoding="utf-8")


def test_it_changes_with_a_library_and_with_a_files_name(copy):
    before = graph_fingerprint(LIBRARIES, copy)
    assert graph_fingerprint(("1.1",), copy) != before
    folder = copy / "ane/models/tortoise/networks"
    (folder / "univnet.py").rename(folder / "vocoder.py")
    try:
        assert graph_fingerprint(LIBRARIES, copy) != before
    finally:
        (folder / "vocoder.py").rename(folder / "univnet.py")


def test_every_module_that_builds_graphs_is_covered():
    names = {path.relative_to(ROOT).as_posix() for path in graph_sources()}
    assert names >= {f"converters/tortoise/{name}.py" for name in (
        "autoregressive", "clvp", "conditioning", "diffusion_decoder", "functions", "univnet")}
    assert names >= {f"converters/{name}.py" for name in (
        "vocoders/hifigan", "vocoders/segments", "coreml/graph", "coreml/merge", "coreml/package", "onnx/package")}
