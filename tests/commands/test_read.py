"""Test `ane read` as a user runs it."""

import json
import re
import signal
import zipfile
from pathlib import Path

import pytest
import soundfile

from ane.books.reading import read_document
from ane.cli import main
from ane.commands.read_options import chunk_numbers

FAST = ("--bundle=demo", "--preset=fastest", "--max-codes", "20")
TEXT = "# One\n\nHello there.\n\n# Two\n\nThe end.\n"


@pytest.fixture(autouse=True)
def book(workplace) -> None:
    (workplace / "book.md").write_text(TEXT, encoding="utf-8")


def test_a_book_is_narrated_goes_on_where_it_was_and_speaks_chunks_again(workplace, capsys):
    command = ["read", "book.md", "-o", "book.wav", *FAST]
    assert main([*command, "--times"]) == 0
    assert "4 of 4 chunks spoken now" in capsys.readouterr().err
    times = json.loads((workplace / "book.json").read_text())
    assert [chapter["title"] for chapter in times["chapters"]] == ["One", "Two"]
    before = soundfile.read("book.wav")[0]

    assert main(command) == 0
    assert "0 of 4 chunks spoken now" in capsys.readouterr().err
    (workplace / "book.md").write_text(TEXT.replace("there", "world"), encoding="utf-8")
    assert main(command) == 0
    assert "1 of 4 chunks spoken now" in capsys.readouterr().err
    (workplace / "book.md").write_text(TEXT, encoding="utf-8")
    assert main([*command, "--redo", "2,4"]) == 0
    assert "2 of 4 chunks spoken now" in capsys.readouterr().err
    assert len(soundfile.read("book.wav")[0]) != len(before) or (soundfile.read("book.wav")[0] != before).any()

    assert main(["read", "--status", "book.wav"]) == 0
    printed = capsys.readouterr().out
    assert "4 of 4 chunks spoken" in printed
    assert "Two" in printed


def test_a_second_format_is_written_from_the_sound_of_the_first(workplace, succeed, complain):
    (workplace / "kept").mkdir()
    assert "4 of 4 chunks spoken now" in succeed("read", "book.md", "-o", "kept/book.flac", *FAST)
    first = Path("kept/book.flac").read_bytes()
    for output, job in (("book.mp3", "kept/book.flac"), ("kept/book.epub", "kept/book.flac.job")):
        said = succeed(
            "read", "book.md", "-o", output, "--job", job, *FAST, *["--per-chapter"] * (output == "book.mp3")
        )
        assert "0 of 4 chunks spoken now" in said
        assert "All chunks will be spoken again" not in said
        assert "did not change them" not in said
    assert {path.name for path in workplace.glob("*.mp3")} == {"book 01 One.mp3", "book 02 Two.mp3"}
    assert not list(workplace.glob("*.job"))
    assert Path("kept/book.flac").read_bytes() == first

    faster = ("read", "book.md", "-o", "kept/book.epub", "--job", "kept/book.flac", *FAST, "--speed", "1.3")
    assert "was spoken with other options (changed: " in complain(*faster)
    assert "0 of 4 chunks spoken now" in succeed("read", "book.md", "-o", "kept/book.flac", *FAST)

    Path("kept/book.epub").write_bytes(b"mine")
    again = ("read", "book.md", "-o", "kept/book.epub", *FAST, "--job")
    assert "was changed since this job wrote it" in complain(*again, "kept/book.flac")
    assert "there is no job at kept/book.epub" in complain(*again, "kept/book.epub")
    Path("kept/book.epub").unlink()
    said = succeed(*again[:-1], "--preview", "1")
    assert "kept/book.flac.job has spoken another output: add --job kept/book.flac.job" in said


def test_the_list_of_chapters_needs_no_output_and_says_what_is_left_out(workplace, capsys):
    (workplace / "book.md").write_text(f"{TEXT}\n    code\n\n![x](x.png)\n" + "# [red]Three\n\n" + "Words. " * 500)
    assert main(["read", "--list", "book.md"]) == 0
    printed = capsys.readouterr().out
    assert "[red]Three" in printed
    assert "4 min" in printed
    assert "left out: 1 listing of code, 1 image" in printed
    assert not list(workplace.glob("*.job"))


def test_a_book_is_shown_as_it_will_be_read_before_any_work(workplace, capsys):
    text = "# One\n\nDr. Zxyvorn paid $5. He left\nat 4 pm.\n\n# Two\n\nZxyvorn [pause:1s] ran.\n\n    code\n"
    (workplace / "book.md").write_text(text, encoding="utf-8")
    (workplace / "words.tsv").write_text("ran\tfled\n", encoding="utf-8")
    assert main(["read", "book.md", "--text"]) == 0
    assert capsys.readouterr().out == "One\n\nDr. Zxyvorn paid $5. He left at 4 pm.\n\nTwo\n\nZxyvorn ran.\n"
    assert main(["read", "book.md", "--text", "--chapters", "2"]) == 0
    assert capsys.readouterr().out == "Two\n\nZxyvorn ran.\n"

    assert main(["read", "book.md", "--explain", "--lexicon", "words.tsv"]) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    assert rows[0][:2] == ["1", "One"]
    assert "left out: 1 listing of code" in printed
    for text, read in (("$5", "five dollars"), ("Dr.", "doctor"), ("ran", "fled")):
        assert any(row[:2] == [text, read] and row[3] == "1" for row in rows), (text, printed)
    assert ["Zxyvorn", "2", "1"] in rows, "the name, how often, and the chapter where it is first"
    assert sorted(path.name for path in workplace.iterdir() if path.name != "home") == ["book.md", "words.tsv"]


def test_a_preview_and_chosen_chapters_are_part_of_the_whole_book(workplace, capsys):
    (workplace / "book.md").write_text(TEXT + "\n# Three\n\nHello there.\n" + "\nWords and more. " * 9)
    command = ["read", "book.md", "-o", "book.epub", *FAST, "--retries", "0"]
    assert main([*command, "--chapters", "3,2", "--preview", "1"]) == 0
    assert re.search(
        r"3 of 3 chunks spoken now.*; this is a preview of chapters 2,3 of 3: the same command without "
        "--chapters and --preview writes the whole book",
        capsys.readouterr().err,
    )
    with zipfile.ZipFile("book.epub") as book:
        assert [name for name in book.namelist() if name.endswith("xhtml")] == [
            "EPUB/chapter-001.xhtml",
            "EPUB/chapter-002.xhtml",
            "EPUB/nav.xhtml",
        ]
        assert "Two" in book.read("EPUB/nav.xhtml").decode()
    assert main(command) == 0
    printed = capsys.readouterr().err
    assert "not in this text" not in printed
    assert re.search(r"\((\d+) of (\d+) chunks spoken now", printed).groups() == ("5", "8")
    assert main([*command, "--preview", "1"]) == 0
    assert main(command) == 0
    assert "0 of 8 chunks spoken now" in capsys.readouterr().err.splitlines()[-1]


def test_what_is_spoken_the_same_way_each_time_is_not_spoken_again(workplace, capsys, monkeypatch):
    monkeypatch.setattr("ane.bundles.bundle.Bundle.uses_seed", False)
    assert main(["read", "book.md", "-o", "book.wav", "--redo", "1"]) == 1
    assert "--redo has no effect on heart" in capsys.readouterr().err


def test_a_faster_book_is_shorter_and_its_words_are_timed_in_its_own_time(workplace):
    """The chunks of both have the same codes."""
    text = "# One\n\nThe boy looked at three thousand brushes at the village.\n"
    (workplace / "book.md").write_text(text, encoding="utf-8")
    seconds = []
    for options in (["--speed", "0.8"], ["--speed", "1.6"]):
        assert (
            main(
                [
                    "read",
                    "book.md",
                    "-o",
                    "book.wav",
                    "--bundle=demo",
                    "--preset=fastest",
                    "--seed",
                    "1",
                    "--times",
                    "--word-times",
                    "--retries",
                    "0",
                    *options,
                ]
            )
            == 0
        )
        chunk = json.loads((workplace / "book.json").read_text())["chapters"][0]["chunks"][1]
        seconds.append(chunk["end"] - chunk["start"])
        assert chunk["start"] <= chunk["words"][0]["start"]
        assert seconds[-1] / 2 < chunk["words"][-1]["end"] - chunk["words"][0]["start"] <= seconds[-1]
    assert seconds[0] / seconds[1] == pytest.approx(2, rel=0.1)


def test_a_forgotten_option_is_reported(workplace, capsys):
    command = ["read", "book.md", "-o", "book.wav", *FAST]
    assert main([*command, "--temperature", "0.5", "--seed", "1"]) == 0
    assert "changed since the last run of this job" not in capsys.readouterr().err
    assert main([*command, "-v", "michael"]) == 0
    assert "warning: changed since the last run of this job: voice, settings." in capsys.readouterr().err


def test_another_text_does_not_replace_a_narration_without_force(workplace, capsys):
    command = ["read", "book.md", "-o", "two.wav", *FAST, "--retries", "0"]
    assert main(command) == 0
    (workplace / "other.md").write_text("# The Pond\n\nIt was cold.\n", encoding="utf-8")
    other = ["read", "other.md", *command[2:]]
    assert main(other) == 1
    assert (
        "only 0 of 4 spoken chunks are in this text, so the job in two.wav.job is for 'book': choose another "
        "output or job, or add --force"
    ) in " ".join(capsys.readouterr().err.split())
    (workplace / "book.md").write_text("# One\n", encoding="utf-8")
    assert main(command) == 1
    assert "only 1 of 4 spoken chunks are in this text" in " ".join(capsys.readouterr().err.split())
    (workplace / "book.md").write_text(TEXT.replace("# Two", ""), encoding="utf-8")
    assert main(command) == 0
    assert "warning: 1 of 4 spoken chunks are no longer in this text. Their sound will be deleted" in " ".join(
        capsys.readouterr().err.split()
    )
    assert main([*other, "--force"]) == 0


def test_the_subtitles_of_a_user_are_not_replaced(workplace, capsys):
    subtitles = "1\n00:00:01,000 --> 00:00:02,000\nIt was first.\n"
    (workplace / "talk.srt").write_text(subtitles, encoding="utf-8")
    command = ["read", "talk.srt", "-o", "talk.wav", "--srt", *FAST]
    assert main([*command, "--force"]) == 1
    assert "cannot write talk.srt: BOOK reads it, so choose another output" in capsys.readouterr().err
    assert main(["read", "book.md", *command[2:]]) == 1
    assert "talk.srt exists, and this job did not write it" in capsys.readouterr().err
    assert (workplace / "talk.srt").read_text(encoding="utf-8") == subtitles


def test_a_file_of_the_user_in_place_of_the_output_is_not_replaced(workplace, capsys):
    (workplace / "own.wav").write_text("my own podcast", encoding="utf-8")
    command = ["read", "book.md", "-o", "own.wav", *FAST, "--retries", "0"]
    assert main(command) == 1
    assert "own.wav exists, and this job did not write it: move it, choose another output, or add --force" in " ".join(
        capsys.readouterr().err.split()
    )
    assert (workplace / "own.wav").read_text(encoding="utf-8") == "my own podcast"
    assert main([*command, "--redo", "9", "--force"]) == 1
    assert not (workplace / "own.wav.job").exists(), "a refused run leaves no job behind"
    assert main([*command, "--force"]) == 0
    assert main([*command, "--redo", "1"]) == 0


def test_ranges_of_chunks():
    assert chunk_numbers("12,40-44,12") == (12, 40, 41, 42, 43, 44)
    assert chunk_numbers("3 - 4, 1") == (1, 3, 4)


@pytest.mark.parametrize("flag", ["--chapters", "--redo"])
@pytest.mark.parametrize("text", ["x", "", "3,", "0", "4-2", "1-", "-1", "one-three", "1-200000"])
def test_what_is_no_number_of_a_chapter_or_chunk_is_refused_with_the_forms_that_are(flag, text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["read", "book.md", "-o", "book.wav", f"{flag}={text}"])
    error = capsys.readouterr().err
    assert f"argument {flag}: it must be numbers from 1 and ranges, such as 12,40-44, got {text!r}" in error


def test_what_only_looks_like_a_command_is_left_out_with_a_note(workplace, capsys):
    (workplace / "book.md").write_text("Wait [pause] for it. [[rate 200]] Now [pause:300ms] go.\n", encoding="utf-8")
    assert main(["read", "book.md", "--text"]) == 0
    assert capsys.readouterr().out == "Wait for it. Now go.\n"
    assert main(["read", "book.md", "-o", "book.wav", *FAST, "--retries", "0"]) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert "[pause] is not a possible pause" in printed
    assert "[[rate 200]] is a command of macOS without effect, so it was left out" in printed
    assert "[pause:300ms] is" not in printed


def test_an_interruption_states_what_is_kept(workplace, capsys, monkeypatch):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore Ctrl-C
    monkeypatch.setattr("ane.books.narration.narrate", lambda *_: signal.raise_signal(signal.SIGINT))
    assert main(["read", "book.md", "-o", "book.wav", *FAST]) == 130
    assert "interrupted; 0 of 4 chunks are kept for the next run of this command; no file" in capsys.readouterr().err


def test_a_lexicon_speaks_only_the_chunks_again_that_it_respells(workplace, capsys):
    command = ["read", "book.md", "-o", "book.wav", *FAST, "--retries", "0"]
    assert main(command) == 0
    (workplace / "words.tsv").write_text("there\tdare\n", encoding="utf-8")
    capsys.readouterr()
    assert main([*command, "--lexicon", "words.tsv", "--times", "--word-times"]) == 0
    assert "1 of 4 chunks spoken now" in capsys.readouterr().err
    chunk = json.loads((workplace / "book.json").read_text())["chapters"][0]["chunks"][1]
    assert [word["word"] for word in chunk["words"]] == ["Hello", "there."]
    assert main(command) == 0
    assert "the last run had --lexicon words.tsv and this run has none" in " ".join(capsys.readouterr().err.split())


def test_another_precision_keeps_what_was_spoken_and_says_so(workplace, capsys):
    command = ["read", "book.md", "-o", "book.wav", *FAST, "--retries", "0"]
    assert main([*command, "--precision", "fp32"]) == 0
    assert main([*command, "--precision", "bf16"]) == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert "4 of 4 chunks were spoken with torch:cpu fp32 and are kept" in printed
    assert "0 of 4 chunks spoken now" in printed


def test_text_in_another_language_is_reported(workplace, capsys):
    (workplace / "book.html").write_text(
        "<p>Hello.<p lang='de-AT'>Guten Tag.<p lang='en-GB'>Bye.<p lang='eng'>Bye again.", encoding="utf-8"
    )
    assert main(["read", "book.html", "-o", "book.wav", *FAST]) == 0
    assert (
        "warning: the document marks 1 of 4 chunks as another language (de-AT). They are read as English. "
        "The first is 'Guten Tag.'"
    ) in capsys.readouterr().err


def test_chunks_that_stay_doubtful_are_listed_with_their_time(workplace, capsys):
    """With 5 codes at most no chunk ends by itself."""
    assert (
        main(
            [
                "read",
                "book.md",
                "-o",
                "book.wav",
                "--bundle=demo",
                "--preset=fastest",
                "--max-codes",
                "5",
                "--retries",
                "1",
            ]
        )
        == 0
    )
    printed = " ".join(capsys.readouterr().err.split())
    assert "4 of 4 chunks are doubtful: listen to them, or speak them again with --redo 1,2,3,4" in printed
    assert "0:00:00 chunk 1, 'One': it has no stop code" in printed
    assert main(["read", "--status", "book.wav"]) == 0
    assert "it has no stop code" in " ".join(capsys.readouterr().out.split())


def test_a_cast_speaks_quotations_in_its_voices_and_subtitles_name_the_speakers(workplace, capsys):
    from tests.imported import imported
    from tests.models.kitten.kitten_model import write_kokoro_model

    model = imported(write_kokoro_model(workplace / "kokoro"), workplace / "kokoro-bundle").path
    (workplace / "book.md").write_text(
        "# One\n\n“Hello,” said Anna.\n\n“Good day,” he said.\n\nIt rained.\n", encoding="utf-8"
    )
    cast, read = workplace / "cast.toml", ["read", "book.md", "-q", "--bundle", str(model), "--cast", "cast.toml"]
    cast.write_text('narrator = "af_heart"\nquotations = "af_heart"\n[speakers]\nAnna = "af_bella"\n')
    speak = [*read, "-o", "book.wav", "--srt", "--vtt", "--times", "--word-times"]
    assert main([*read, "--list"]) == 0
    assert "“Good day,”': nobody is known (“…” she said)" in capsys.readouterr().out
    assert main(speak) == 0
    assert "Anna: <u>“Hello,”</u>" in (workplace / "book.srt").read_text(encoding="utf-8")
    assert "<v Anna><u>“Hello,”</u>" in (workplace / "book.vtt").read_text(encoding="utf-8")
    chunks = json.loads((workplace / "book.json").read_text(encoding="utf-8"))["chapters"][0]["chunks"]
    assert [(chunk["text"], chunk.get("voice", "")) for chunk in chunks] == [
        ("One", ""),
        ("“Hello,”", "Anna"),
        ("said Anna.", ""),
        ("“Good day,”", "quotation"),
        ("he said.", ""),
        ("It rained.", ""),
    ]
    cast.write_text(cast.read_text().replace("af_bella", "af_heart"))
    capsys.readouterr()
    assert main([argument for argument in speak if argument != "-q"]) == 0
    assert "1 of 6 chunks spoken now" in " ".join(capsys.readouterr().err.split())
    misspelt = '[speakers]\nAna = "af_bella"\nBob = "af_bella"\n'
    cast.write_text(f'narrator = "af_bella"\n{misspelt}')
    said = "the cast names 'Ana', who speaks nowhere in the book (did you mean 'Anna'?)"
    for command in ([*read[:2], *read[3:], "--cast-report"], [word for word in [*speak, "--force"] if word != "-q"]):
        assert main(command) == 0
        out, err = capsys.readouterr()
        assert said in " ".join(err.split())
        if "--cast-report" in command:
            rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
            assert rows == [["Anna", "1", "af_bella"], ["(not known)", "1", "af_bella"]]
    cast.write_text('[speakers]\nAnna = "nobody"\n')
    assert main([*read, "-o", "other.wav"]) == 1
    assert "voice 'nobody' of Anna in the cast: no voice is named 'nobody'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("flags", "lacking", "spoken"),
    [
        (
            ("--acx",),
            "lack the author and the narrator: add --author and --narrator",
            ["The Pond.", "It rained.", "You have been listening to The Pond. The end."],
        ),
        (("--acx", "--author", "A. Writer", "--opening", "", "--closing", ""), "", ["The Pond", "It rained."]),
        (
            ("--acx", "--author", "A", "--narrator", "N", "--keep", "front-matter", "--closing", ""),
            "",
            ["The Pond. Written by A. Narrated by N.", "The Pond", "It rained."],
        ),
        ((), "", ["The Pond", "It rained."]),
    ],
)
def test_credits_of_acx_replace_the_title_page_and_say_what_they_lack(workplace, capsys, flags, lacking, spoken):
    (workplace / "pond.md").write_text("---\ntitle: The Pond\n---\n# The Pond\n\nIt rained.\n", encoding="utf-8")
    assert main(["read", "pond.md", "--text", *flags]) == 0
    out, err = capsys.readouterr()
    assert err.count("warning") == bool(lacking)
    assert lacking in err
    assert out.rstrip().split("\n\n") == spoken


def test_flags_give_a_text_the_tags_that_an_epub_has(succeed):
    facts = ("--year", "1899", "--publisher", "Press", "--series", "Ponds#2", "--description", "Of a turtle.")
    succeed("read", "book.md", "-o", "book.epub", *FAST, "--retries", "0", *facts)
    about = {"date": "1899", "publisher": "Press", "series": "Ponds #2", "description": "Of a turtle."}
    assert read_document("book.epub").about == about
    succeed("read", "book.epub", "-o", "book.mp3", *FAST, "--retries", "0", "--year", "1900", "--preview", "1")
    av = pytest.importorskip("av", reason="pip install '.[books]'")
    with av.open("book.mp3") as file:
        tags = {name.lower().removeprefix("id3v2_priv."): value for name, value in file.metadata.items()}
    assert tags["date"] == "1900", "a flag precedes the book"
    assert {name: tags[name] for name in ("publisher", "grouping")} == {"publisher": "Press", "grouping": "Ponds #2"}


def test_the_name_of_a_link_states_the_format_of_a_book(workplace):
    Path("short.md").write_text("# One\n\nIt rained.\n")
    Path("d.wav").symlink_to("nosuch.bin")
    assert main(["read", "short.md", "-o", "d.wav", *FAST, "--retries", "0"]) == 0
    assert Path("d.wav").is_symlink()
    assert Path("nosuch.bin").read_bytes()[:4] == b"RIFF"
