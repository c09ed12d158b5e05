"""Provide the fixtures of all tests, and the option to test with other golden vectors."""

import asyncio
import gc
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from ane.system.reports import switch_off_reports
from tests.notices import noticed

if TYPE_CHECKING:
    from ane.bundles import Bundle
    from tests.onnx_packages import OnnxPackages

GOLDEN = Path(__file__).parent / "parity" / "golden"
FAMILIES = Path(__file__).parent / "parity" / "families"


@pytest.fixture
def notices() -> Iterator[list[str]]:
    """What the test logs for its user, line by line."""
    with noticed() as lines:
        yield lines


@pytest.fixture
def complain(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """``complain(*arguments)``: the one line of a command that must fail with status 1 and write no file."""

    from ane.cli import main

    def run(*arguments: object) -> str:
        before = files(tmp_path)
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if line.startswith("ane: error:")]
        assert code == 1
        assert len(lines) == 1, err
        assert err.splitlines()[-1] == lines[0]
        assert "Traceback" not in err
        assert out == ""
        assert files(tmp_path) == before
        return lines[0]

    return run


def files(directory: Path) -> set[Path]:
    """All files except the cache's, which may change at any time."""
    return {path for path in directory.rglob("*") if path.is_file() and "cache" not in path.parts}


@pytest.fixture
def succeed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``succeed(*arguments)``: all that a command prints, which must succeed."""

    from ane.cli import main

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 0
        return "".join(capsys.readouterr())

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        type=Path,
        default=GOLDEN,
        metavar="DIR",
        help="golden vectors to compare with (default: the set in tests/parity/golden)",
    )
    parser.addoption(
        "--families",
        type=Path,
        default=FAMILIES,
        metavar="DIR",
        help="golden vectors of FastSpeech, Whisper and KittenTTS (default: those in tests/parity/families)",
    )


def pytest_configure(config: pytest.Config) -> None:
    use_own_temporary_folder()
    hypothesis.settings.register_profile("default", max_examples=30, deadline=None)
    hypothesis.settings.register_profile("campaign", max_examples=300, deadline=None)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
    switch_off_reports()
    gc.set_threshold(50_000, 20, 100)  # tracing a network makes millions of objects, and little garbage
    # workers, and the processes that tests start, read compiled modules instead of compiling them again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # one thread per worker, also in processes that tests start, because more threads would compete for the CPUs
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # if a test asks for two threads, a waiting thread uses no CPU
    families = config.getoption("families")
    if not families.is_dir():
        raise pytest.UsageError(f"--families {families}: no such folder")
    directory = config.getoption("golden")
    if not (directory / "config.json").is_file():
        raise pytest.UsageError(
            f"--golden {directory}: no config.json there; tests/parity/golden/README.md describes the format"
        )


def use_own_temporary_folder() -> None:
    """Give this process and its children a temporary folder of their own, which is deleted even if a child is killed.

    A worker's folder is in the folder of the process that started it. The folders of ``tmp_path`` stay where they were.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="ane-tests-")
    # after the folder of multiprocessing, whose priority is -100
    Finalize(None, shutil.rmtree, (tempfile.tempdir, True), exitpriority=-200)


@pytest.hookimpl(trylast=True)  # after the fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Each file begins with torch's first number of threads, because rounding depends on what an earlier file chose.

    It is set even if this thread has it, because new threads take the number that any thread set last.
    """
    if (nextitem is None or nextitem.path != item.path) and (torch := sys.modules.get("torch")):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine has an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    asyncio.run(pyfuncitem.function(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


def pytest_unconfigure() -> None:
    gc.unfreeze()  # native modules report objects that are alive at the end


@pytest.fixture(autouse=True, scope="module")
def _long_lived_objects_are_no_garbage() -> None:
    """coremltools collects garbage in each conversion: 0.2 s a time among the objects of torch and of the tests."""
    gc.collect()
    gc.freeze()
    if "converters.onnx.graph" in sys.modules:
        share_the_registry_of_exports()


@cache
def share_the_registry_of_exports() -> None:
    """torch registers its 2,000 ONNX functions for each graph that it exports, which takes 0.5 s a time."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))


@pytest.fixture(scope="session")
def golden_checkpoints(pytestconfig: pytest.Config) -> Path:
    """Directory of tiny random checkpoints under the official file names; tests must not change it."""
    return pytestconfig.getoption("golden").resolve() / "checkpoints"


@pytest.fixture(scope="session")
def golden_config(pytestconfig: pytest.Config) -> Path:
    """The config.json that gives the sizes of those checkpoints."""
    return pytestconfig.getoption("golden").resolve() / "config.json"


@pytest.fixture(scope="session")
def golden_model(golden_checkpoints: Path, golden_config: Path, tmp_path_factory: pytest.TempPathFactory) -> "Bundle":
    """Those checkpoints, imported once; tests must not change it."""
    from tests.imported import imported

    return imported(golden_checkpoints, tmp_path_factory.mktemp("golden") / "bundle", config=golden_config)


@pytest.fixture(scope="session")
def random_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of random weights with upstream's tokenizer and the voice noise; tests must not change it."""
    from tests.random_model import write_random_bundle

    path = tmp_path_factory.mktemp("bundles") / "random"
    write_random_bundle(path)
    return path


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder shared by all workers of a run."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@pytest.fixture(scope="session")
def onnx_packages(golden_model: "Bundle", shared: Path) -> "OnnxPackages":
    """ONNX packages of a shallow golden model, shared by all workers of a run; tests must not change them."""
    from tests.onnx_packages import OnnxPackages

    return OnnxPackages(golden_model, shared / "onnx")


@pytest.fixture(scope="session")
def golden_families(pytestconfig: pytest.Config) -> Path:
    """Directory of the golden vectors of the other model families: fastspeech/, whisper/ and kitten/."""
    return pytestconfig.getoption("families").resolve()


@pytest.fixture(scope="session")
def preloaded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a server that runs Python commands without importing torch each time (``tests.preloaded``)."""
    from tests.preloaded import preloaded

    with preloaded(tmp_path_factory.mktemp("preloaded")) as address:
        yield address


@pytest.fixture(scope="session")
def python(preloaded_server: Path) -> Path:
    """A program that stands for `python -m MODULE` and `python -c CODE` in a process of its own, and starts at once."""
    from tests.preloaded import write_client

    return write_client(preloaded_server.parent / "python", preloaded_server)
