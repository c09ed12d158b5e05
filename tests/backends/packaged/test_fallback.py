"""Test that the backend "auto" moves to other compute units or to torch if an engine refuses, with one notice each."""

# ruff: noqa: F811  fixtures are imported
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ane.backends import load_backend
from ane.backends.choosing import core_ml_runs
from ane.backends.coreml import trial
from ane.backends.packaged.fallback import FallbackDecoder
from ane.backends.packaged.functions import EngineRefusalError
from ane.backends.packaged.golden import FILE, STEPS
from ane.bundles.bundle import Bundle
from ane.cli import main
from ane.models.tortoise.settings import Diffusion, TortoiseSettings
from ane.models.tortoise.synthesizer import TortoiseSpeaker
from ane.system.decibels import snr_db
from converters.coreml.coreml_package import CoreMLOptions
from converters.proof import parity
from tests.backends.coreml import native
from tests.backends.coreml.mac_fixtures import forked_trials, mac, unguarded_mac  # noqa: F401
from tests.backends.coreml.orders import Order, StandIn
from tests.backends.decoder_steps import columns
from tests.conversions import converted
from tests.edits import edit_json
from tests.notices import noticed
from tests.random_model import sized, write_random_bundle
from tests.refusals import assert_refused

BUCKETS = {"prefill": (64,), "step": (128,), "condition": (16,), "denoise": (64,), "univnet": (14,)}
# functions that replace steps with a state
ON_HOST = "decoder steps with the kv-cache on the host, such as step_2_128,"
SAME_DB = 20  # dB for equal sound. Random networks amplify rounding
NETWORKS = ["autoregressive", "diffusion", "univnet"]


def converted_layers(shared: Path, folder: Path, buckets: dict[str, tuple[int, ...]], networks: list[str]) -> Path:
    """A bundle of networks of one layer each, since a first load repeats its probe many times."""
    source = folder / "random"
    with pytest.MonkeyPatch.context() as patch, sized(autoregressive={"layers": 1}, diffusion={"num_layers": 1}):
        patch.setattr(parity, "check_threshold", lambda *_: None)  # random weights miss the threshold by some dB
        write_random_bundle(source)
        return converted(shared, Bundle(source), [CoreMLOptions("fp32", lanes=(2,), buckets=buckets)], networks).path


@pytest.fixture(scope="module")
def bundle(shared, tmp_path_factory) -> Path:
    return converted_layers(shared, tmp_path_factory.mktemp("bundles"), BUCKETS, NETWORKS)


@pytest.fixture(scope="module")
def two_buckets(shared, tmp_path_factory) -> Bundle:
    """A decoder with functions of 64 and of 128 slots."""
    return Bundle(
        converted_layers(
            shared, tmp_path_factory.mktemp("bundles"), {"prefill": (64,), "step": (64, 128)}, ["autoregressive"]
        )
    )


def settings() -> TortoiseSettings:
    chosen = TortoiseSettings.of("ultra_fast", candidates=1, lanes=2)
    return replace(chosen, sampling=replace(chosen.sampling, max_codes=6), diffusion=Diffusion(steps=3))


def speak(bundle: Path, backend: str = "auto", **options) -> tuple[np.ndarray, list[str], str]:
    """The audio of a short text, the notices but those of first loads, the name of the backend.

    With a cache on the host, if nothing else is said: states are fp16, and the packages of these tests are not.
    """
    if core_ml_runs():
        options.setdefault("cache", "io")
    with noticed() as notices:
        loaded = load_backend(backend, Bundle(bundle), **options)
        audio = TortoiseSpeaker(Bundle(bundle), loaded).speak("Hi.", "noise", seed=0, settings=settings()).audio
    assert np.isfinite(audio).all()
    assert audio.any()
    return audio, [line for line in notices if not line.startswith(("Compiling", "Loading"))], loaded.name


@pytest.fixture(scope="module")
def expected(bundle) -> np.ndarray:
    return speak(bundle, "torch:cpu")[0]


def test_core_ml_speaks_without_a_notice_where_it_works(mac, bundle, expected):
    audio, notices, name = speak(bundle)
    assert notices == []
    assert name.startswith("coreml")
    assert snr_db(expected, audio) > SAME_DB
    assert mac.count("load univnet_14_17 CPU_AND_GPU") == 2


def test_the_cache_is_a_state_that_its_first_load_has_proved(mac, bundle, expected, monkeypatch):
    monkeypatch.setattr(trial, "STEPS", STEPS)
    audio, notices, _ = speak(bundle, cache="auto")
    assert notices == []
    assert snr_db(expected, audio) > 5  # only 5 dB, because a state is fp16
    assert mac.count("predict step") == STEPS, "its probe alone: it takes more time"
    before = mac.count("predict state")
    assert before > STEPS, "its probe, many times"
    speak(bundle, cache="auto")
    assert mac.count("predict state") < before + STEPS, "no second time"


@pytest.mark.parametrize(
    ("backend", "order", "why"),
    [
        (
            "auto",
            Order("predict", function="store_32_128", message="error code: -14"),
            "cannot run it (error code -14)",
        ),
        ("coreml", Order("predict", "off", function="state_2_128_128"), "it returns other values (26.0 dB, and "),
        ("auto", Order("predict", "stale", function="state_2_128_128"), "it returns other values ("),
        ("coreml", Order("predict", "forget", function="store_32_128"), "it returns other values ("),
    ],
)
def test_where_states_do_not_work_the_host_keeps_the_cache(mac, bundle, expected, backend, order, why):
    mac.order(order)
    audio, notices, _ = speak(bundle, backend, cache="auto")
    (line,) = notices
    assert why in line
    assert line.endswith(f". Running {ON_HOST} on CPU_AND_NE instead.")
    assert snr_db(expected, audio) > SAME_DB


@pytest.mark.parametrize(
    ("slow", "chosen"),
    [("state_2_128_128", "step"), ("store_32_128", "step"), ("step_2_128", "state"), (None, "state")],
)
def test_the_faster_kind_of_cache_is_chosen_by_the_time_of_first_loads(mac, bundle, slow, chosen):
    """A state is slower where Core ML computes it on the CPU or copies it, both without an error."""
    mac.order(*([Order("predict", "slow", slow)] if slow else []))
    for _ in range(2):
        before = len(mac.log)
        _, notices, _ = speak(bundle, cache="auto")
        assert [re.sub(r"[\d.]+ ms", "T ms", line) for line in notices] == [
            "A decoder step takes T ms with the kv-cache in a Core ML state (state_2_128_128 and its share of a store, "
            f"on CPU_AND_NE) and T ms with the kv-cache on the host. Running {ON_HOST} on CPU_AND_NE instead."
        ] * (chosen == "step")
        [*_, last] = [line for line in mac.log[before:] if line.startswith(("predict state", "predict step"))]
        assert last.startswith(f"predict {chosen}")
    assert mac.count("load step_2_128") == {"step": 4, "state": 2}[chosen], "it is tried and measured once"


def test_a_step_that_core_ml_refuses_leaves_the_cache_in_a_state(mac, bundle):
    mac.order(Order("load", function="step_2_128"))
    _, notices, _ = speak(bundle, cache="auto")
    assert notices == []
    assert mac.count("predict state")


@pytest.mark.parametrize(("cache", "largest"), [("io", "step_2_128"), ("state", "state_2_128_128")])
def test_no_function_is_loaded_for_the_first_time_while_codes_are_decoded(mac, two_buckets, notices, cache, largest):
    decoder, width = load_backend("coreml", two_buckets, cache=cache).decoder(2, 40), two_buckets.widths[0]
    decoder.prefill(columns(0, 30, width=width))
    loaded = len(notices)
    assert f"Loading {largest} on the Neural Engine for the first time" in "\n".join(notices)
    for length in range(40):
        decoder.step(columns(length, 2, 1, width=width), np.full(2, length))
    assert mac.log[-1] == f"predict {largest} CPU_AND_NE"
    assert notices[loaded:] == []


def test_a_function_that_a_text_cannot_reach_is_not_loaded(mac, two_buckets):
    decoder = load_backend("coreml", two_buckets, cache="io").decoder(2, 10)
    decoder.prefill(columns(0, 30, width=two_buckets.widths[0]))
    assert mac.count("load step_2_64")
    assert not mac.count("load step_2_128")


@pytest.fixture
def macos_27(mac) -> StandIn:
    native.write_system(mac.folder, "27.0.1")
    return mac


def test_on_macos_27_no_function_begins_on_the_gpu_or_moves_there(macos_27, bundle, expected):
    macos_27.order(Order("load", function="denoise_2_64", units="CPU_AND_NE", message="ANECCompile() FAILED"))
    audio, notices, _ = speak(bundle)
    assert snr_db(expected, audio) > SAME_DB
    assert [line.rpartition(". ")[2] for line in notices if "instead" in line] == [
        "Running denoise_2_64 on CPU_ONLY instead."
    ]
    assert macos_27.count("load univnet_14_17 CPU_ONLY")
    assert not [line for line in macos_27.log if "GPU" in line]


def test_on_macos_27_verification_runs_no_function_on_the_gpu(macos_27, bundle):
    main(["verify", "--bundle", str(bundle), "--against", "coreml", "--networks", "univnet"])
    assert macos_27.count("predict univnet_14_17 CPU_ONLY")
    assert not [line for line in macos_27.log if "GPU" in line]


def test_on_macos_27_a_refusal_does_not_advise_the_gpu(macos_27, bundle):
    macos_27.order(Order("load", function="denoise_2_64", units="CPU_AND_NE", message="ANECCompile() FAILED"))
    assert_refused(r": try compute_units=CPU_ONLY$", speak, bundle, "coreml", compute_units="CPU_AND_NE")


def test_on_macos_27_the_gpu_runs_what_it_is_chosen_for(macos_27, bundle):
    speak(bundle, compute_units="CPU_AND_GPU")
    assert {line.split()[-1] for line in macos_27.log if line.startswith("load ")} == {"CPU_AND_GPU"}


@pytest.mark.parametrize(("version", "kind"), [("26.3", "coreml"), ("26.4.1", "torch"), ("26.5", "torch")])
def test_where_core_ml_is_reported_to_end_processes_auto_is_torch(mac, bundle, notices, version, kind):
    native.write_system(mac.folder, version)
    assert load_backend("auto", Bundle(bundle)).name.startswith(kind)
    assert [f"crash programs on macOS {version}" in line for line in notices] == [True] * (kind == "torch")
    assert load_backend("coreml", Bundle(bundle)).name.startswith("coreml")


def test_without_core_ml_torch_speaks(bundle, expected):
    audio, notices, name = speak(bundle)
    assert (notices, name.partition(":")[0]) == ([], "torch")
    np.testing.assert_array_equal(audio, expected)


@pytest.mark.parametrize("call", ["load", "predict"])
def test_functions_that_the_neural_engine_refuses_run_on_the_gpu(mac, bundle, expected, call):
    mac.order(Order(call, units="CPU_AND_NE", message="ANECCompile() FAILED"))
    audio, notices, _ = speak(bundle)
    assert snr_db(expected, audio) > SAME_DB
    assert [line.rpartition(". ")[2] for line in notices] == [
        f"Running {one} instead."
        for one in (
            "step_2_128 on CPU_AND_GPU",
            "prefill_64 on CPU_AND_GPU",
            "condition_16 on CPU_AND_GPU",
            "denoise_2_64 on CPU_AND_GPU",
        )
    ]
    assert all("the Neural Engine's compiler rejects it" in line for line in notices)


@pytest.mark.parametrize(
    ("function", "how", "instead"),
    [
        ("step_2_128", "stale", "step_2_128 on CPU_AND_GPU"),
        ("denoise_2_64", "nan", "denoise_2_64 on CPU_AND_GPU"),
        ("univnet_14_17", "off", "univnet_14_17 on CPU_ONLY"),
    ],
)
def test_one_function_that_is_refused_or_wrong_on_its_units_moves_alone(mac, bundle, expected, function, how, instead):
    units = "CPU_AND_GPU" if function.startswith("univnet") else "CPU_AND_NE"
    mac.order(Order("predict", how, function, units, "error code: -14"))
    audio, notices, _ = speak(bundle)
    assert snr_db(expected, audio) > SAME_DB
    (line,) = notices
    assert f"{function!r}" in line
    assert f" on {units}: " in line
    assert line.endswith(f". Running {instead} instead.")


@pytest.mark.parametrize("function", ["step_2_128", "denoise_2_64", "condition_16", "univnet_14_17"])
def test_a_network_with_a_function_that_core_ml_refuses_everywhere_runs_on_torch(mac, bundle, function, notices):
    """A stream goes on; of a decoder, what it had computed is computed again."""
    mac.order(Order("predict", function=function, message="error code: -14"))
    synthesizer = TortoiseSpeaker(Bundle(bundle), load_backend("auto", Bundle(bundle), cache="io"))
    network = {"step": "autoregressive", "univnet": "univnet"}.get(function.partition("_")[0], "diffusion")
    assert network not in synthesizer.backend.name
    assert np.concatenate(list(synthesizer.stream("Hi.", "noise", seed=0, settings=settings()))).any()
    assert re.search(rf"^coreml fp32, on torch: .*\b{network}\b", synthesizer.backend.name)
    on = [f"{function} on {one}" for one in (["CPU_ONLY"] if network == "univnet" else ["CPU_AND_GPU", "CPU_ONLY"])]
    assert [line.rpartition(". ")[2] for line in notices if not line.startswith(("Compiling", "Loading"))] == [
        f"Running {one} instead." for one in (*on, f"{network} on torch")
    ]


def test_a_bundle_without_probes_opens_and_keeps_the_cache_on_the_host(mac, bundle, expected, tmp_path):
    older = shutil.copytree(bundle, tmp_path / "older")

    def remove_probes(manifest: dict) -> None:
        for package in manifest["coreml"]["packages"]:
            (older / package["path"] / FILE).unlink()
            package["files"] = [file for file in package["files"] if not file["file"].endswith(FILE)]

    edit_json(older / "bundle.json", remove_probes)
    audio, notices, _ = speak(older, cache="auto")
    assert notices == []
    assert snr_db(expected, audio) > SAME_DB


def test_when_core_ml_refuses_everything_torch_speaks_all_of_it(mac, bundle, expected):
    mac.order(Order("load"))
    audio, notices, name = speak(bundle)
    assert [line for line in notices if "torch" in line] == notices[2::3] + notices[-1:]
    assert name.startswith("torch:cpu"), "what runs nothing is not reported"
    np.testing.assert_allclose(audio, expected, atol=1e-4)


def test_a_compilation_that_kills_its_process_is_left_to_torch(unguarded_mac, forked_trials, two_buckets, expected):
    """In a process of its own; of one that does not end, tests/backends/coreml."""
    unguarded_mac.order(Order("compile", "kill", "autoregressive-fp32.mlpackage"))
    audio, notices, _ = speak(two_buckets.path)
    assert "it ended the process (signal 9, perhaps for lack of memory)" in notices[0]
    assert [line.rpartition(". ")[2] for line in notices] == ["Running autoregressive on torch instead."]
    assert snr_db(expected, audio) > SAME_DB


@pytest.mark.parametrize("call", ["compile", "predict"])
def test_without_memory_for_core_ml_torch_speaks(mac, bundle, expected, call):
    mac.order(Order(call, "memory"))
    audio, notices, _ = speak(bundle)
    assert all("not enough memory" in line for line in notices)
    assert notices[-1].endswith("on torch instead.")
    np.testing.assert_allclose(audio, expected, atol=1e-4)


def test_a_damaged_package_is_left_to_torch(mac, bundle, tmp_path):
    damaged = shutil.copytree(bundle, tmp_path / "damaged")
    weights = next((damaged / "packages" / "diffusion-fp32.mlpackage").rglob("weight.bin"))
    weights.write_bytes(bytes(weights.stat().st_size))
    _, notices, _ = speak(damaged)
    assert len(notices) == 1
    assert notices[0].endswith("Running diffusion on torch instead.")


def test_core_ml_that_was_asked_for_by_name_is_never_replaced(mac, bundle):
    mac.order(Order("load", function="denoise_2_64"))
    assert_refused("try compute_units=", speak, bundle, "coreml")


class RefusingDecoder:
    """Records the columns of its steps; a refusing one fails from its third step on."""

    lanes, capacity, prefixes = 1, 8, 1

    def __init__(self, refuses: bool):
        self.refuses, self.stepped = refuses, []

    def prefill(self, prefix, index=0):
        return prefix[-1], prefix[-1]

    def step(self, columns, lengths, first_lane=0, prefix_indices=None):
        if self.refuses and len(self.stepped) == 2:
            raise EngineRefusalError("refused")
        self.stepped.append(columns)
        return columns, columns[:, -1]


def test_a_decoder_that_moves_on_computes_every_column_again():
    made = [RefusingDecoder(True), RefusingDecoder(False)]
    bound = iter(made)
    decoder = FallbackDecoder(lambda: next(bound), lambda error: None)
    decoder.prefill(np.zeros((2, 4), np.float32))
    columns = np.arange(12, dtype=np.float32).reshape(3, 1, 1, 4) + 1
    for length in range(3):
        decoder.step(columns[length], np.array([length]))
    again, last = made[1].stepped
    np.testing.assert_array_equal(again[0], columns[:2, 0, 0])
    np.testing.assert_array_equal(last, columns[2])
