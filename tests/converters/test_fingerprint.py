"""The fingerprint of a conversion: it changes with the code that builds graphs, and with nothing else."""

import shutil
from pathlib import Path

import pytest

from converters.fingerprint import ROOT, graph_fingerprint, graph_sources

LIBRARIES = ("1.0",)


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the source, to be edited and restored."""
    root = tmp_path_factory.mktemp("source")
    for package in ("ane", "converters"):
        shutil.copytree(ROOT / package, root / package, ignore=lambda folder, names: [
            name for name in names if not (name.endswith(".py") or (Path(folder) / name).is_dir())])
    return root


def changed_by(root: Path, file: str) -> set[str]:
    """The targets whose fingerprint changes with a file."""
    path, before = root / file, {target: graph_fingerprint(target, LIBRARIES, root) for target in ("coreml", "onnx")}
    content = path.read_text(encoding="utf-8")
    path.write_text(content + "\n# changed\n", encoding="utf-8")
    try:
        return {target for target in before if graph_fingerprint(target, LIBRARIES, root) != before[target]}
    finally:
        path.write_text(content, encoding="utf-8")


@pytest.mark.parametrize(("file", "targets"), [
    ("ane/models/tortoise/networks/univnet.py", {"coreml", "onnx"}),
    ("ane/models/tortoise/networks/layers.py", {"coreml", "onnx"}),
    ("converters/models.py", {"coreml", "onnx"}),
    ("converters/blocks.py", {"coreml"}),
    ("converters/vocoders/hifigan.py", {"coreml"}),
    ("converters/tortoise/buckets.py", {"coreml"}),
    ("converters/coreml/merge.py", {"coreml"}),
    ("converters/coreml/package.py", {"coreml"}),
    ("converters/onnx/decoder.py", {"onnx"}),
    ("converters/tortoise/onnx_decoder.py", {"onnx"}),
    ("converters/onnx/export.py", {"onnx"}),
    ("converters/decoder_graphs.py", {"coreml"}),
    ("converters/whisper/onnx_decoder.py", {"onnx"}),
    ("ane/models/whisper/networks/text_decoder.py", {"coreml", "onnx"}),
])
def test_it_changes_with_a_network_and_with_its_converter(copy, file, targets):
    assert changed_by(copy, file) == targets


@pytest.mark.parametrize("file", [
    "converters/proof/lint_checks.py", "converters/proof/lint_rules.py", "converters/proof/parity.py",
    "converters/tortoise/probes.py", "converters/conversion.py", "converters/ggml/gguf.py",
    "ane/models/tortoise/pipeline.py", "ane/cli.py"])
def test_it_keeps_with_a_file_that_graphs_do_not_depend_on(copy, file):
    assert changed_by(copy, file) == set()


def test_it_changes_with_a_library_and_with_the_target():
    assert graph_fingerprint("coreml", ("1.0",)) != graph_fingerprint("coreml", ("1.1",))
    assert graph_fingerprint("coreml", LIBRARIES) != graph_fingerprint("onnx", LIBRARIES)


def test_a_renamed_network_file_changes_it(copy):
    before = graph_fingerprint("coreml", LIBRARIES, copy)
    folder = copy / "ane/models/tortoise/networks"
    (folder / "univnet.py").rename(folder / "vocoder.py")
    try:
        assert graph_fingerprint("coreml", LIBRARIES, copy) != before
    finally:
        (folder / "vocoder.py").rename(folder / "univnet.py")


def test_every_module_that_builds_graphs_is_covered():
    names = {path.relative_to(ROOT).as_posix() for path in graph_sources("coreml")}
    assert names >= {f"converters/tortoise/{name}.py" for name in (
        "autoregressive", "buckets", "clvp", "conditioning", "diffusion_decoder", "univnet")}
    assert names >= {f"converters/vocoders/{name}.py" for name in ("hifigan", "segments")}
    assert names >= {f"converters/coreml/{name}.py" for name in ("compress", "graph", "merge", "options", "package")}
