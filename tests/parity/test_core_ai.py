"""One bucket of each kind of function, of every network that is converted, returns the reference's outputs on Core AI.

Apple's own runtime is the third witness of a graph, beside the reference and the interpreter. It takes 10 s of CPU:
nothing cheaper has all of the operations that Apple's runtime could read in another way.
"""

from dataclasses import replace

import pytest

from ane.bundles.bundle import Bundle
from converters.coreml.coreml_package import CoreMLOptions, write_package
from converters.proof.parity import reference_backend
from converters.proof.verify import FLOAT32_NOISE, PackageRunner, runner_named
from converters.tortoise.tortoise_functions import FUNCTIONS
from tests.random_model import CONFIGS, write_random_bundle

pytest.importorskip("coreai", reason="needs Core AI: pip install '.[coreai]'")

OPTIONS = CoreMLOptions(
    "fp32",
    lanes=(2,),
    buckets={
        "prefill": (32,),
        "step": (64,),
        "condition": (32,),
        "denoise": (64,),
        "clvp_text": (32,),
        "clvp_speech": (32,),
        "univnet": (14,),
        "hifigan": (14,),
    },
)
STATE_DB = 60.0  # dB of functions with a state, which is always fp16
SLACK_DB = 0.5  # between two runtimes in float32


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Bundle:
    folder = tmp_path_factory.mktemp("core-ai") / "random"
    write_random_bundle(folder)
    return Bundle(folder)


@pytest.fixture(scope="module")
def runner() -> PackageRunner:
    return runner_named("coreai")


@pytest.mark.parametrize(
    "network", dict.fromkeys(row.network for row in FUNCTIONS if row.coreml and row.network in CONFIGS)
)
def test_every_kind_of_function_returns_the_references_outputs(model, runner, network):
    package = write_package(model, network, OPTIONS, model.path)
    reference = reference_backend(model, keep=True)
    checks = [runner.check(model, package, name, reference, None) for name in package.functions]
    runner.unload(model.path / package.path)
    for check in checks:
        assert check.snr is not None, check.problem
        assert check.snr >= (STATE_DB if check.function.startswith(("state", "store")) else FLOAT32_NOISE), check


@pytest.mark.parametrize("precision", ["8bit", "4bit"])
def test_compressed_weights_mean_the_same_to_core_ai(model, runner, precision):
    options = replace(OPTIONS, precision=precision)
    package = write_package(model, "autoregressive", options, model.path, functions={"prefill_32", "step_2_64"})
    reference = reference_backend(model, keep=True)
    ours, apples = (one.check(model, package, "step_2_64", reference, None) for one in (runner_named("mil"), runner))
    runner.unload(model.path / package.path)
    assert not ours.problem + apples.problem
    assert abs(ours.snr - apples.snr) <= SLACK_DB
