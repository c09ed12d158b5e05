"""A stand-in for WordNet and for the teacher."""

import stat
import sys

import pytest

FLITE = '''#!{python} -S
"""Takes flite's arguments and writes a tone for each letter."""
import array, math, sys, wave
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
base = {{"rms": 110, "slt": 180}}[options["-voice"]]
text = open(options["-f"]).read()
tones = {{pitch: array.array("h", (int(9000 * math.sin(math.tau * base * pitch * t / 16000)) for t in range(960)))
         for pitch in {{1 + ord(letter) % 7 for letter in text}}}}
with wave.open(options["-o"], "wb") as file:
    file.setparams((1, 2, 16000, 0, "NONE", ""))
    file.writeframes(b"".join(tones[1 + ord(letter) % 7].tobytes() for letter in text))
'''


@pytest.fixture
def teacher(tmp_path):
    program = tmp_path / "flite"
    program.write_text(FLITE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture(scope="session")
def wordnet(tmp_path_factory):
    """A folder in WordNet's format: a licence, then synsets whose glosses follow a bar."""
    folder = tmp_path_factory.mktemp("wordnet")
    lines = ["  1 This software and database is being provided to you",
             '00001740 03 n 01 entity 0 003 ~ 00001930 n 0000 | that which is perceived; "he saw an (old) entity"',
             '00002684 03 n 01 object 0 001 @ 00001930 n 0000 | a tangible entity; "it was full of ABC objects"; '
             '"she asked her brother to help with the dishes after dinner"']
    for part in ("noun", "verb", "adj", "adv"):
        (folder / f"data.{part}").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return folder
