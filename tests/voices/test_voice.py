"""Test that a saved voice is loaded again, that upstream's formats are read, and that one line rejects other files."""

import os
import pickle
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors.torch import save_file

from ane.voices import Voice, load_voice, open_voice, save_voice
from tests.refusals import assert_refused

ROWS = npst.arrays(np.float32, st.tuples(st.just(1), st.integers(1, 64)), elements=st.floats(-60, 60, width=32))


def voice(name="pat") -> Voice:
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    return Voice(draw(1, 8), draw(1, 16), name, "a.wav, b.wav")


def refusal(path) -> str:
    return assert_refused(re.escape(str(path)), open_voice, "pat", (path,))


@given(ar=ROWS, diffusion=ROWS, name=st.text(min_size=1, max_size=20), source=st.text(max_size=20))
def test_a_saved_voice_is_loaded_unchanged(tmp_path_factory, ar, diffusion, name, source):
    path = tmp_path_factory.mktemp("voice") / "file.safetensors"
    save_voice(path, Voice(ar, diffusion, name, source))
    back = load_voice(path)
    np.testing.assert_array_equal(back.ar, ar)
    np.testing.assert_array_equal(back.diffusion, diffusion)
    assert (back.name, back.source, back.from_clips) == (name, source, False)


def test_a_voice_of_clips_is_known_in_the_files_of_earlier_versions_too(tmp_path):
    save_voice(tmp_path / "v.safetensors", replace(voice(), from_clips=True))
    earlier = {"ar_latent": AR, "diffusion_latent": DIFFUSION, "clip_mels": np.ones((1, 80, 517), np.float32)}
    save_file({key: torch.from_numpy(tensor) for key, tensor in earlier.items()}, tmp_path / "earlier.safetensors")
    assert load_voice(tmp_path / "v.safetensors", "other").name == "other"
    assert all(load_voice(tmp_path / f"{name}.safetensors").from_clips for name in ("v", "earlier"))


def test_a_pth_is_what_upstream_reads(tmp_path):
    save_voice(tmp_path / "v.pth", voice())
    content = torch.load(tmp_path / "v.pth", weights_only=True)
    assert isinstance(content, tuple)
    assert [tuple(tensor.shape) for tensor in content] == [(1, 8), (1, 16)]
    back = open_voice("v", (tmp_path / "v.pth",))
    np.testing.assert_array_equal(back.ar, voice().ar)
    np.testing.assert_array_equal(back.diffusion, voice().diffusion)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_latents_of_other_precisions_become_float32(tmp_path, dtype):
    latents = torch.ones(1, 1024, dtype=dtype), torch.ones(2048, dtype=dtype, requires_grad=True)
    torch.save(latents, tmp_path / "v.pth")
    back = open_voice("v", (tmp_path / "v.pth",))
    assert back.widths == (1024, 2048)
    assert back.ar.dtype == back.diffusion.dtype == np.float32


def test_upstreams_list_of_raw_clips_is_distinguished_from_latents(tmp_path):
    for count in (1, 2):
        audio = [torch.sin(torch.arange(30000 + number) / 20)[None] * 0.5 for number in range(count)]
        torch.save(audio, tmp_path / "v.pth")
        clips = open_voice("v", (tmp_path / "v.pth",)).read()
        assert [rate for _, rate in clips] == [22050] * count
        for (samples, _), tensor in zip(clips, audio, strict=True):
            np.testing.assert_array_equal(samples, tensor[0].numpy())


def test_raw_clips_are_checked_like_files(tmp_path):
    torch.save([torch.zeros(1, 30000), torch.rand(1, 30000)], tmp_path / "v.pth")
    assert_refused(r"v\.pth, clip 1: is silent", lambda: open_voice("v", (tmp_path / "v.pth",)).read())


def test_code_in_a_pth_is_refused_and_not_executed(tmp_path):
    class MaliciousPickle:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    (tmp_path / "bare.pth").write_bytes(pickle.dumps(MaliciousPickle()))
    torch.save((MaliciousPickle(), torch.ones(1, 8)), tmp_path / "zip.pth")
    for name in ("bare.pth", "zip.pth"):
        refusal(tmp_path / name)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_a_truncated_voice_is_refused(tmp_path, suffix, share):
    save_voice(tmp_path / f"whole.{suffix}", voice())
    content = (tmp_path / f"whole.{suffix}").read_bytes()
    (tmp_path / f"cut.{suffix}").write_bytes(content[: int(len(content) * share)])
    refusal(tmp_path / f"cut.{suffix}")


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@given(content=st.binary(max_size=200))
def test_random_bytes_are_refused(tmp_path_factory, suffix, content):
    path = tmp_path_factory.mktemp("voice") / f"bytes.{suffix}"
    path.write_bytes(content)
    refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        {"ar": torch.ones(1, 8)},
        (),
        [],
        (torch.ones(1, 8), 3),
        "text",
        [torch.ones(2, 30000)],
        (torch.ones(1, 8), torch.ones(1, 0)),
        (torch.ones(1, 8, dtype=torch.int64), torch.ones(1, 8)),
        (torch.ones(1, 8).to_sparse(), torch.ones(1, 8)),
        (torch.ones(1, 8, device="meta"), torch.ones(1, 8)),
    ],
)
def test_a_pth_that_holds_something_else_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "v.pth")
    assert "is not a voice" in refusal(tmp_path / "v.pth")
    torch.save(torch.zeros(1, 1024), tmp_path / "latents.pth")  # for one network, but not named as forks name it
    assert "is not a voice but one tensor" in refusal(tmp_path / "latents.pth")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_latents_that_are_not_numbers_are_refused(tmp_path, suffix, value):
    bad = voice()
    bad.diffusion[0, 3] = value
    save_voice(tmp_path / f"v.{suffix}", bad)
    assert "NaN" in refusal(tmp_path / f"v.{suffix}")


AR, DIFFUSION = np.ones((1, 8), np.float32), np.ones((1, 16), np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"ar_latent": AR}, "lacks diffusion_latent"),
        ({"weight": AR}, "lacks ar_latent and diffusion_latent"),
        ({"ar_latent": AR.reshape(2, 4), "diffusion_latent": DIFFUSION}, r"ar_latent is float32 \(2, 4\)"),
        ({"ar_latent": AR.astype(np.int32), "diffusion_latent": DIFFUSION}, "ar_latent is int32"),
        ({"ar_latent": AR.astype(np.complex64), "diffusion_latent": DIFFUSION}, "ar_latent is complex64"),
        ({"ar_latent": AR * np.float64(1e300), "diffusion_latent": DIFFUSION}, "ar_latent has .* too large"),
        # types that numpy does not know
        *(
            (
                {"ar_latent": AR, "diffusion_latent": DIFFUSION, key: torch.ones(1, 8, dtype=dtype)},
                "cannot be read as a safetensors voice",
            )
            for key in ("ar_latent", "diffusion_latent")
            for dtype in (torch.bfloat16, torch.float8_e4m3fn)
        ),
    ],
)
def test_a_safetensors_file_of_something_else_is_refused(tmp_path, tensors, message):
    save_file({key: torch.as_tensor(tensor) for key, tensor in tensors.items()}, tmp_path / "v.safetensors")
    assert_refused(message, lambda: load_voice(tmp_path / "v.safetensors"))


@pytest.mark.parametrize(
    ("name", "fault"), [("v.wav", r"\.safetensors or \.pth"), ("file/v.safetensors", "cannot write")]
)
def test_a_voice_that_cannot_be_written_is_refused(tmp_path, name, fault):
    (tmp_path / "file").touch()
    assert_refused(fault, lambda: save_voice(tmp_path / name, voice()))


def test_a_full_disk_leaves_the_old_voice_and_no_temporary_files(tmp_path, python):
    """Simulated by a limit on the size of files."""
    paths = [tmp_path / f"v.{suffix}" for suffix in ("pth", "safetensors")]
    for path in paths:
        save_voice(path, voice())
    before = [path.read_bytes() for path in paths]
    code = (
        "import resource, signal, sys, numpy as np\n"
        "from ane.system.errors import UserError; from ane.voices import *\n"
        "sys.dont_write_bytecode = True  # a cut .pyc file would fail later tests\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "big = Voice(np.ones((1, 4096), np.float32), np.ones((1, 4096), np.float32), 'v')\n"
        "for path in sys.argv[1:]:\n"
        "    try: save_voice(path, big)\n"
        "    except UserError as error: print(error)\n"
    )
    result = subprocess.run([python, "-c", code, *paths], capture_output=True, text=True, check=False)
    assert result.stdout.count("cannot write") == 2, result.stderr
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == paths
