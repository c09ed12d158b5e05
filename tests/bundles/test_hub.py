"""Test imports from a Hugging Face hub, which is a small server on the loopback interface.

Imports run in other processes than the tests, because huggingface_hub reads its environment only once.
"""

import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ane.bundles.bundle import Bundle
from ane.bundles.hub import check_recorded_hashes, is_repository, read_expected
from ane.models.tortoise.checkpoint_files import REQUIRED
from ane.models.tortoise.checkpoints import packaged_file
from ane.models.whisper.tokenizer_files import from_ranks
from tests.bundles.hub_server import HubRepository, serving
from tests.edits import edit_json
from tests.imported import contents_of, hibari_graph
from tests.models.kitten.kitten_model import write_kokoro_model
from tests.models.whisper.random_whisper import RANKS, write_hugging_face
from tests.refusals import assert_refused

FIRST, SECOND = "1" * 40, "2" * 40
NOBODY = "http://127.0.0.1:9"
Importer = Callable[..., list[str]]


@pytest.fixture(scope="module")
def files(golden_checkpoints: Path) -> dict[str, bytes]:
    """The required checkpoints and one optional one: enough for a bundle, quick to serve."""
    return {name: (golden_checkpoints / name).read_bytes() for name in (*REQUIRED, "rlg_auto.pth")}


IMPORTS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from ane.cli import main

for arguments in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main(["import", *arguments])
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def import_in(python: Path, golden_config: Path) -> Callable[[Path], Importer]:
    """``import_in(folder)(endpoint, *commands)``: runs `ane import` with the arguments of each command, in a folder
    with the hub at ``endpoint``. The hub's cache and all other files are in that folder. Returns for each command what
    it prints, or if it ``fails``, its error.

    In place of the address, ``endpoint`` may be the repositories by name, which are served meanwhile.
    """

    def import_in(folder: Path) -> Importer:
        def run(
            endpoint: str | dict[str, HubRepository],
            *commands: tuple[str, ...],
            config: Path | None = golden_config,
            fails: bool = False,
            **environment: str,
        ) -> list[str]:
            if isinstance(endpoint, dict):
                with serving(endpoint) as address:
                    return run(address, *commands, config=config, fails=fails, **environment)
            source = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
            inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
            env = {
                **inherited,
                "HF_ENDPOINT": endpoint,
                "HF_HOME": str(folder / "cache"),
                "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "ANE_HOME": str(folder / "home"),
                "OMP_NUM_THREADS": "1",
                "NO_PROXY": "127.0.0.1",
                "PYTHONPATH": source,
                **environment,
            }
            sizes = [] if config is None else ["--config", str(config)]
            arguments = json.dumps([[*command, *sizes] for command in commands])
            call = [python, "-c", IMPORTS, arguments]
            result = subprocess.run(call, env=env, cwd=folder, capture_output=True, text=True, timeout=120)
            assert result.returncode == 0, result.stderr
            ended = [json.loads(line) for line in result.stdout.splitlines()]
            assert [status for status, *_ in ended] == [int(fails)] * len(commands), ended
            return [error_of(err) if fails else out for _, out, err in ended]

        return run

    return import_in


@pytest.fixture
def run_import(import_in: Callable[[Path], Importer], tmp_path: Path) -> Importer:
    return import_in(tmp_path)


def hub(name: str, files: dict[str, bytes]) -> dict[str, HubRepository]:
    """The only repository of a hub, with the files of its only commit."""
    return {name: HubRepository({FIRST: files}, {"main": FIRST})}


@pytest.fixture(scope="module")
def imported(import_in, files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which upstream's default repository was imported as the bundle "out" and is now in the cache."""
    folder = tmp_path_factory.mktemp("imported")
    unrelated = {"README.md": b"hello", "config.json": b'{"model_type": "something else"}'}
    import_in(folder)(hub("Manmay/tortoise-tts", files | unrelated), ("hub", "-o", "./out"))
    return folder


def error_of(printed: str) -> str:
    """The one line of a failed import, the last."""
    lines = [line for line in printed.splitlines() if line.startswith("ane: error: ")]
    assert lines == printed.rstrip().splitlines()[-1:], printed
    assert "Traceback" not in printed
    return lines[0]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_an_import_records_repository_commit_licence_and_hashes(imported, files, golden_checkpoints, golden_config):
    bundle = Bundle(imported / "out")
    assert bundle.manifest.source == {
        "repository": "Manmay/tortoise-tts",
        "revision": FIRST,
        "files": {name: sha256(data) for name, data in files.items()},
        "decoder_md5": hashlib.md5(files["autoregressive.pth"]).hexdigest(),
    }
    assert bundle.decoder_md5 == bundle.manifest.source["decoder_md5"]
    assert bundle.manifest.licence == "apache-2.0"
    local = contents_of(golden_checkpoints, config=golden_config)
    assert bundle.networks == local.configs.keys() - {"hifigan", "rlg_diffuser"}
    assert all((bundle.tensors("clvp")[key] == value).all() for key, value in local.tensors("clvp").items())


@pytest.mark.parametrize("shards", [1, 2])
def test_a_whisper_repository_becomes_a_bundle_with_its_alignment_heads(run_import, tmp_path, shards):
    folder = write_hugging_face(tmp_path / "source", shards=shards)
    (folder / "tokenizer.json").write_text(tokenizer := from_ranks(RANKS))
    (folder / "generation_config.json").write_text('{"alignment_heads": [[1, 1]]}')
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != RANKS.name}
    served = hub("someone/whisper", files | {"README.md": b"hello"})
    run_import(served, ("someone/whisper", "-o", "./out"), config=None)
    bundle = Bundle(tmp_path / "out")
    assert (bundle.family.name, bundle.tokenizer) == ("whisper", tokenizer)
    assert bundle.manifest.source == {
        "repository": "someone/whisper",
        "revision": FIRST,
        "files": {name: sha256(data) for name, data in files.items()},
    }
    assert bundle.config("decoder").alignment_heads == ((1, 1),)
    expected = contents_of(write_hugging_face(tmp_path / "whole"))
    for network in bundle.networks:
        assert all(tensor.equal(expected.tensors(network)[key]) for key, tensor in bundle.tensors(network).items())
    if shards > 1:
        run_import(NOBODY, ("someone/whisper", "-o", "./again"), config=None, HF_HUB_OFFLINE="1")


def test_a_kokoro_repository_with_its_folders_becomes_a_bundle(run_import, tmp_path):
    source = write_kokoro_model(tmp_path / "source")
    style = np.load(source / "voices-v1.0.bin")["af_heart"].tobytes()
    files = {
        "onnx/model.onnx": (source / "model.onnx").read_bytes(),
        "onnx/model_fp16.onnx": b"",
        "config.json": b"{}",
        "voices/af_heart.bin": style,
        "voices/bm_fable.bin": style,
        "voices/jf_alpha.bin": b"not English",
    }
    name = "onnx-community/Kokoro-82M-v1.0-ONNX"
    assert "Voices: af_heart, bm_fable\n" in run_import(hub(name, files), (name, "-o", "./out"), config=None)[0]
    run_import(NOBODY, (name, "-o", "./again"), config=None, HF_HUB_OFFLINE="1")


def test_a_voice_of_hibari_is_added_by_the_name_of_its_file(run_import, tmp_path):
    graph = hibari_graph().read_bytes()
    repository, file = "maureesewilliams/hibari", "voices/af_new.int8.onnx"
    served = hub(repository, {file: graph})
    run_import(served, (f"{repository}/{file}", "-o", "new"), config=None)
    bundle = Bundle(tmp_path / "home" / "bundles" / "new")
    assert (bundle.default_voice, bundle.manifest.source["files"]) == ("af_new", {file: sha256(graph)})
    assert bundle.manifest.source["revision"] == FIRST


def test_checkpoints_in_the_models_folder_of_a_tag_are_found(run_import, files, tmp_path):
    folders = {"a/hidden": ".models", "a/plain": "models"}
    served = {
        name: HubRepository(
            {FIRST: {f"{folder}/{file}": data for file, data in files.items()}, SECOND: {}},
            {"main": SECOND, "v2": FIRST},
        )
        for name, folder in folders.items()
    }
    flags = ("--revision", "v2", "--precision", "bf16")
    run_import(served, *((name, "-o", f"./{folders[name]}", *flags) for name in folders))
    for folder in folders.values():
        bundle = Bundle(tmp_path / folder)
        assert (bundle.manifest.source["revision"], bundle.manifest.source["files"].keys()) == (FIRST, files.keys())
        assert bundle.precision == "bf16"


def test_one_file_of_a_repository_is_completed_from_a_base(run_import, imported, files, tmp_path):
    tuned = {
        "8301_gpt.pth": files["autoregressive.pth"],
        "900_gpt.pth": b"",
        "tokenizer.json": packaged_file("tokenizer.json").read_bytes(),
    }
    served = hub("me/tuned", {f"models/{name}": data for name, data in tuned.items()})
    command = ("me/tuned/models/8301_gpt.pth", "--base", str(imported / "out"), "-o", "./out")
    run_import(served, command, config=None)
    source = Bundle(tmp_path / "out").manifest.source
    assert source["files"].keys() == {"models/8301_gpt.pth", "models/tokenizer.json"}
    assert (source["repository"], source["base"]) == ("me/tuned/models/8301_gpt.pth", "out")


def test_a_lora_for_a_repository_is_recorded_and_compared(run_import, files, tmp_path):
    (tmp_path / "lora").mkdir()
    codes, width = torch.load(io.BytesIO(files["autoregressive.pth"]), weights_only=True)["mel_head.weight"].shape
    factors = {"A": torch.zeros(1, width), "B": torch.zeros(codes, 1)}
    save_file(
        {f"mel_head.lora_{name}.weight": factor for name, factor in factors.items()},
        lora := tmp_path / "lora" / "adapter_model.safetensors",
    )
    (config := tmp_path / "lora" / "adapter_config.json").write_text('{"lora_alpha": 1}')
    served, flags = hub("Manmay/tortoise-tts", files), ("--lora", "./lora", "--expect", "out/bundle.json")
    run_import(served, ("hub", "-o", "./out", *flags[:2]), ("hub", "-o", "./again", *flags))
    recorded = Bundle(tmp_path / "out").manifest.source["files"]
    added = {"lora": sha256(lora.read_bytes()), "adapter_config.json": sha256(config.read_bytes())}
    assert recorded == {name: sha256(data) for name, data in files.items()} | added
    config.write_text('{"lora_alpha": 2}')
    [error] = run_import(served, ("hub", "-o", "./other", *flags), fails=True)
    assert "adapter_config.json has SHA-256" in error


def test_offline_mode_without_a_cache_is_refused(run_import):
    [message] = run_import(NOBODY, ("me/tts", "-o", "./out"), fails=True, HF_HUB_OFFLINE="1")
    assert "cannot download me/tts: HF_HUB_OFFLINE is set" in message
    assert "not all in the cache" in message


@pytest.mark.parametrize("offline", [{"HF_HUB_OFFLINE": "1"}, {}], ids=["offline", "unreachable"])
def test_cached_checkpoints_are_imported_without_the_hub(imported, import_in, offline):
    destination = f"./again{len(offline)}"
    import_in(imported)(NOBODY, ("hub", "-o", destination), **offline)
    assert Bundle(imported / destination).manifest.source == Bundle(imported / "out").manifest.source


def test_a_refused_connection_is_reported(run_import):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    [message] = run_import(endpoint, ("me/tts", "-o", "./out"), fails=True)
    assert f"the hub at {endpoint} cannot be reached" in message


FAULTS = {
    "files/readme": ({"README.md": b""}, {}, "at main has no autoregressive.pth"),
    "files/tuned": ({"8301_gpt.pth": b"", "README.md": b""}, {}, "give OWNER/NAME/8301_gpt.pth as SOURCE, with --base"),
    "me/gone": (None, {"gone": ("vocoder.pth",)}, "me/gone at main has no file vocoder.pth"),
    "me/moved": (None, {"moves_to": SECOND}, "changed while it was being downloaded"),
    "me/lies": (None, {"lies": {"vocoder.pth": "f" * 64}}, f"me/lies records {'f' * 64}"),
    "openai/whisper": ({"config.json": b"{}"}, {}, "has no model.safetensors: it is not a Whisper repository"),
    "a/whisper-shards": (
        {
            "config.json": b"{}",
            "model.safetensors.index.json": b'{"weight_map": {"x": "model-00002-of-00002.safetensors"}}',
        },
        {},
        "has no model-00002-of-00002.safetensors: it is not a Whisper repository",
    ),
    "maureesewilliams/hibari": ({"voices/af_new.int8.onnx": b""}, {}, "name one, such as"),
}


def test_faults_of_repositories_are_reported(run_import, files, tmp_path):
    repositories = {
        name: HubRepository({FIRST: content or files, SECOND: content or files}, {"main": FIRST}, **faults)
        for name, (content, faults, _) in FAULTS.items()
    }
    expected = {name: message for name, (*_, message) in FAULTS.items()}
    commands = [(name, "-o", "./out") for name in expected]
    wrong = {"me/tts": "has no repository me/tts", "me/gone --revision v9": "me/gone has no revision 'v9'"}
    commands += [(*arguments.split(), "-o", "./out") for arguments in wrong]
    errors = run_import(repositories, *commands, config=None, fails=True)
    for (name, message), error in zip((expected | wrong).items(), errors, strict=True):
        assert message in error, name
    assert errors[0].endswith("it is not a Tortoise repository")  # which has no checkpoints to name
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("path", "message"), [("elsewhere", "answered 404"), ("portal", "does not answer like a")])
def test_a_server_that_is_no_hub_is_reported(run_import, path, message):
    with serving({}) as endpoint:
        assert message in run_import(f"{endpoint}/{path}", ("me/tts", "-o", "./out"), fails=True)[0]


def test_other_bytes_of_a_commit_that_a_bundle_recorded_are_refused(imported, run_import, files, tmp_path):
    shutil.copytree(imported / "out", tmp_path / "out")
    served = hub("Manmay/tortoise-tts", files | {"rlg_auto.pth": files["rlg_auto.pth"] + b"\0"})
    flags = ("./out", "--force"), ("./new", "--expect", "out/bundle.json")
    for message in run_import(served, *(("hub", "-o", *each) for each in flags), fails=True):
        assert "rlg_auto.pth has SHA-256" in message
        assert "out/bundle.json records" in message
    assert not (tmp_path / "new").exists()
    Bundle(tmp_path / "out").verify()
    assert Bundle(tmp_path / "out").identity == Bundle(imported / "out").identity


def test_a_new_commit_can_have_other_bytes(imported, run_import, files, tmp_path):
    shutil.copytree(imported / "out", tmp_path / "out")
    changed = {name: data for name, data in files.items() if name != "rlg_auto.pth"}
    served = {"Manmay/tortoise-tts": HubRepository({FIRST: files, SECOND: changed}, {"main": SECOND})}
    run_import(served, ("hub", "-o", "./out", "--force"))
    assert Bundle(tmp_path / "out").manifest.source["revision"] == SECOND
    assert "rlg_auto" not in Bundle(tmp_path / "out").networks


# Recorded hashes


def test_recorded_hashes_are_read_from_a_mapping_or_a_bundle_json(tmp_path):
    path = tmp_path / "expected.json"
    path.write_text(json.dumps({"a.pth": "A" * 64}))
    assert read_expected(path) == {"a.pth": "A" * 64}
    edit_json(path, lambda stated: stated.update(source={"files": {"b.pth": "b" * 64}}))
    assert read_expected(path) == {"b.pth": "b" * 64}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a.pth": "12"}', '{"source": {}}', '{"a.pth": 3}'])
def test_a_file_without_hashes_is_refused(tmp_path, text):
    (tmp_path / "expected.json").write_text(text)
    assert_refused(r"expected\.json", lambda: read_expected(tmp_path / "expected.json"))


def test_hashes_are_compared_without_case_and_every_recorded_file_must_exist():
    check_recorded_hashes({"a.pth": "AB"}, {"a.pth": "ab", "b.pth": "cd"}, "x")
    assert_refused(r"x records a SHA-256 for c\.pth", check_recorded_hashes, {"c.pth": "ab"}, {"a.pth": "ab"}, "x")


@pytest.mark.parametrize("text", ["Manmay/tortoise-tts", "a/b", "a/b/models/8301_gpt.pth"])
def test_repository_ids_are_known(text):
    assert is_repository(text)


@pytest.mark.parametrize("text", ["a", "./a", "/a/b", "a/b/c", "../b", "~/b", "a/"])
def test_paths_are_no_repository_ids(text):
    assert not is_repository(text)
