"""Test the server's web page in a browser: it speaks typed text, and lights the words while they are spoken."""

import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from benchmarks.listening import edits, words
from tests.recogniser import Recogniser
from tests.server.browser import open_browser
from tests.server.server_process import wait_until
from tests.server.speech_requests import TEXT, TOKEN, active, events

pytest.importorskip("fastapi", reason="needs the extra server")

RATE = 24000
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


@pytest.fixture(scope="module")
def downloads(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(server, downloads) -> Iterator[Any]:
    """The page, to which the token has not been given yet."""
    opened = open_browser(downloads)
    try:
        opened.get(server.address)
        yield opened
    finally:
        opened.quit()


@pytest.fixture
def page(browser) -> Any:
    """The page with the token, as freshly loaded; its history is kept."""
    browser.execute_script("sessionStorage.setItem('token', arguments[0])", TOKEN)
    browser.refresh()
    wait_until(lambda: browser.execute_script("return document.getElementById('voice').options.length"))
    return browser


def text_of(page: Any, name: str) -> str:
    return page.find_element("id", name).text


def focused(page: Any) -> str:
    return page.switch_to.active_element.get_attribute("id")


def press(page: Any, *keys: str) -> None:
    page.switch_to.active_element.send_keys(*keys)


def speak(page: Any, text: str, **fields: str) -> None:
    for name, value in {"text": text, **fields}.items():
        page.execute_script(
            "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', {bubbles: true}))",
            name,
            value,
        )
    page.find_element("id", "speak").click()


def hear(page: Any, text: str, **fields: str) -> None:
    """Speak a text, and wait until all has been made and heard."""
    speak(page, text, **fields)
    wait_until(lambda: ended(page))


@contextmanager
def screen(page: Any, width: int, height: int = 780, scale: int = 1) -> Iterator[None]:
    """Show the page on a screen of this size within the block."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def colours(page: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def heard(page: Any) -> np.ndarray:
    return np.concatenate([part["samples"] for part in page.execute_script("return recorded.heard")]).astype(np.float32)


def faults(page: Any) -> list[tuple[str, str]]:
    """What axe-core finds, and the first element of each."""
    axe = pytest.importorskip("axe_core_python", reason="needs axe-core: pip install '.[test]'")
    page.execute_script((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = page.execute_async_script("axe.run({runOnly: arguments[0]}).then(arguments[1])", AXE_TAGS)
    assert len(found["passes"]) > 20
    return [(fault["id"], fault["nodes"][0]["html"]) for fault in found["violations"]]


def ended(page: Any) -> bool:
    """Whether all has been made and heard."""
    return text_of(page, "status").startswith("Done") and not page.find_element("id", "stop").is_enabled()


# Keep the order of these two tests: the first one needs a page without a token


def test_a_token_is_asked_for(browser):
    wait_until(lambda: text_of(browser, "error") == "This server needs a token.")
    assert focused(browser) == "token"
    press(browser, "wrong\n")
    wait_until(lambda: text_of(browser, "error") == "The token is wrong.")
    press(browser, TOKEN + "\n")
    wait_until(lambda: focused(browser) == "text")
    assert not text_of(browser, "error")
    options = browser.execute_script("return [...document.getElementById('model').options].map(({value}) => value)")
    assert options == ["heart", "demo"]


def test_with_the_keyboard_alone_a_text_is_heard_and_its_words_are_lit(browser, server):
    from selenium.webdriver.common.keys import Keys

    press(browser, Keys.CONTROL + "a")
    press(browser, TEXT)
    order = [focused(browser)]
    while order[-1] != "speak":
        press(browser, Keys.TAB)
        order.append(focused(browser))
    assert order == ["text", "model", "voice", "seed", "speed", "speak"], "heart has no presets"
    press(browser, Keys.ENTER)
    wait_until(lambda: ended(browser))
    parts, lit = browser.execute_script("return [recorded.heard, recorded.lit]")
    assert {part["rate"] for part in parts} == {RATE}
    assert len(parts) > 1, "it was heard while it was made"
    sound = heard(browser)
    assert 3 < len(sound) / RATE < 7
    assert np.sqrt((sound**2).mean()) > 0.03
    pytest.importorskip("pocketsphinx", reason="needs the extra test")
    assert edits(words(TEXT), Recogniser([]).transcribe(sound, RATE).split()) <= 3
    assert [word for word, _ in lit] == TEXT.split()
    starts = [word["start"] for event in events(server, word_times=True) for word in event.get("words", ())]
    late = np.abs(np.diff([at for _, at in lit]) - np.diff(starts))  # a busy machine shows single words late
    assert np.median(late) < 0.1
    assert late.max() < 0.6
    assert text_of(browser, "status").startswith(f"Done: {len(sound) / RATE:.1f} s of sound in ")
    assert text_of(browser, "sound-value") == f"{len(sound) / RATE:.2f} s"
    assert all(float(text_of(browser, f"{name}-value").removesuffix(" s")) >= 0 for name in ("wait", "first", "rest"))


def test_the_sound_can_be_downloaded(page, downloads):
    speak(page, "Rain fell.", seed="7")
    wait_until(lambda: text_of(page, "status").startswith("Done"))
    page.find_element("id", "download").click()
    file = downloads / "speech.wav"
    wait_until(lambda: file.exists() and file.stat().st_size)  # Chromium makes an empty file first
    data = file.read_bytes()
    assert (data[:4], data[8:16], int.from_bytes(data[4:8], "little")) == (b"RIFF", b"WAVEfmt ", len(data) - 8)
    np.testing.assert_allclose(np.frombuffer(data[44:], "<i2") / 32768, heard(page), atol=1e-6)
    # the MP3 must contain the sound that is shown, not this text
    page.execute_script("$('text').value = 'Another text.'")
    page.find_element("id", "download-mp3").click()
    mp3 = downloads / "speech.mp3"
    wait_until(lambda: mp3.exists() and mp3.stat().st_size)
    assert abs(soundfile.info(mp3).duration - len(heard(page)) / RATE) < 0.1
    assert text_of(page, "status") == "The MP3 is ready."


def test_escape_stops_the_sound_and_the_request(page, server):
    from selenium.webdriver.common.keys import Keys

    speak(page, " ".join([TEXT] * 40), model="demo")
    wait_until(lambda: active(server) == 1)  # the request is logged only once it runs
    press(page, Keys.ESCAPE)
    assert text_of(page, "status") == "Stopped."
    assert not page.find_element("id", "stop").is_enabled()
    wait_until(lambda: server.log()[-1].get("outcome") == "client gone")


def test_the_history_outlives_the_page(page):
    hear(page, "Snow fell.", seed="9", speed="1.25")
    length = len(heard(page))
    page.refresh()
    entry = wait_until(lambda: page.find_elements("css selector", "#history .load"))[0]
    assert entry.text.startswith(f"Snow fell.\nheart · {length / RATE:.1f} s · seed 9")
    wait_until(lambda: page.execute_script("return document.getElementById('voice').options.length"))
    entry.click()
    assert page.find_element("id", "seed").get_property("value") == "9"
    assert page.find_element("id", "speed").get_property("value") == "1.25"
    assert len(heard(page)) == length
    wait_until(lambda: page.execute_script("return recorded.lit.map(([word]) => word)") == ["Snow", "fell."])
    count = len(page.find_elements("css selector", "#history li"))
    page.find_element("css selector", "[aria-label='Delete: Snow fell.']").click()
    wait_until(lambda: len(page.find_elements("css selector", "#history li")) == count - 1)


def test_an_error_of_the_server_is_shown_and_keeps_the_sound(page):
    speak(page, " … ")
    assert "nothing to say" in wait_until(lambda: text_of(page, "error"))
    hear(page, "Rain fell.")
    assert not text_of(page, "error")
    speak(page, " … ")
    wait_until(lambda: text_of(page, "error"))
    assert text_of(page, "words") == "Rain fell."
    assert page.find_element("id", "play").is_displayed()


def test_only_what_has_an_effect_is_asked_for(page):
    """As a model that draws no random numbers: the server refuses a seed for it."""
    page.execute_script("models.find(({id}) => id === 'heart').random = false; showChoices()")
    assert not page.find_element("id", "seed-field").is_displayed()
    hear(page, "Rain.", seed="7")
    assert "seed" not in text_of(page, "status")
    assert "seed" not in page.find_element("id", "code").get_property("textContent")


def test_characters_are_counted_and_too_many_are_not_sent(page):
    speak(page, "Rain 🐢")
    assert text_of(page, "count") == "6 of at most 4096 characters"
    wait_until(lambda: ended(page))
    page.execute_script("$('text').value = 'a'.repeat(4098); showCode(); $('form').requestSubmit()")
    assert not page.find_element("id", "speak").is_enabled()
    assert page.execute_script("return $('text').validationMessage") == "The text has 2 characters too many."
    assert page.execute_script("return request") is None


def test_warnings_are_shown_with_the_sound_and_its_entry_in_the_history(page):
    hear(page, "Это дом.")
    note = text_of(page, "notes")
    assert "Cyrillic letters are read" in note
    hear(page, "Rain.")
    assert not page.find_element("id", "notes").is_displayed()
    page.find_elements("css selector", "#history .load")[1].click()
    assert text_of(page, "notes") == note


@pytest.mark.parametrize(("width", "height"), [(390, 700), (1280, 720)])
def test_the_player_stays_in_view_and_the_history_is_before_the_code(page, width, height):
    with screen(page, width, height):
        speak(page, f"{TEXT} " * 30)
        wait_until(lambda: page.find_elements("css selector", "#words .lit"))
        for share in (0, 0.5, 1):
            page.execute_script("scrollTo(0, arguments[0] * document.documentElement.scrollHeight)", share)
            top, bottom = page.execute_script(
                "const {top, bottom} = $('play').getBoundingClientRect(); return [top, bottom]"
            )
            assert 0 <= top < bottom <= height, share
        assert page.execute_script(
            "return $('history').getBoundingClientRect().top < $('code').getBoundingClientRect().top"
        )
        page.find_element("id", "play").click()
        assert text_of(page, "play") == "Play"
        press(page, "\ue00c")  # Escape


def test_the_page_names_the_voice_of_a_model(page):
    names = {
        model: page.execute_script(
            "$('model').value = arguments[0]; showChoices(); return [...$('voice').options].map(({value}) => value)",
            model,
        )
        for model in ("heart", "demo")
    }
    assert names["heart"] == ["heart"]
    assert names["demo"][:2] == ["heart", "michael"]


@pytest.fixture
def docs(browser, server) -> Iterator[Any]:
    """The page of the API, with the token."""
    browser.get(f"{server.address}/docs")
    browser.execute_script("document.getElementById('token').value = arguments[0]", TOKEN)
    yield browser
    browser.get(server.address)


def answer_to(docs: Any, operation: str, body: str = "") -> Any:
    """The element with the answer of an operation that was tried."""
    section = docs.find_element("xpath", f"//section[h2[@id='{operation}']]")
    section.find_element("css selector", "summary").click()
    if body:
        docs.execute_script("arguments[0].value = arguments[1]", section.find_element("css selector", "textarea"), body)
    section.find_element("css selector", "button").click()
    answer = section.find_element("css selector", ".answer")
    wait_until(lambda: "Waiting" not in answer.text and answer.text)
    return answer


def test_the_api_can_be_tried_on_its_page(docs):
    assert '"id": "heart"' in answer_to(docs, "get-v1-models").text
    spoken = answer_to(docs, "post-v1-audio-speech")
    assert "200" in spoken.text
    audio = spoken.find_element("css selector", "audio")
    wait_until(lambda: docs.execute_script("return arguments[0].duration > 0.5", audio))
    docs.find_element("css selector", "#post-v1-audio-speech ~ details summary").click()
    assert "no model is named" in answer_to(docs, "post-v1-audio-speech", '{"model": "other", "input": "Hm."}').text
    assert [entry for entry in docs.get_log("browser") if "Content Security" in entry["message"]] == []


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (1280, "dark")])
def test_the_page_of_the_api_has_no_fault_and_fits(docs, width, scheme):
    colours(docs, scheme)
    with screen(docs, width):
        answer_to(docs, "get-v1-audio-voices")
        assert docs.execute_script("return document.documentElement.scrollWidth") <= width
        assert faults(docs) == []


def test_the_code_does_what_the_page_does(page, tmp_path):
    speak(page, 'It\'s a "quoted" $HOME — text.\n', seed="3", speed="1.1")
    sizes = {}
    for language, command in {
        "curl": ["bash", "-c"],
        "python": [sys.executable, "-c"],
        "javascript": ["node", "--input-type=module", "-e"],
    }.items():
        if shutil.which("curl" if language == "curl" else command[0]) is None:
            continue
        if language == "python":
            pytest.importorskip("openai", reason="needs OpenAI's client: pip install openai")
        page.find_element("css selector", f"[value={language}]").click()
        assert TOKEN not in text_of(page, "code")
        code = page.find_element("id", "code").get_property("textContent")
        subprocess.run([*command, code], cwd=tmp_path, env={**os.environ, "ANE_TOKEN": TOKEN}, timeout=60, check=True)
        sizes[language] = (tmp_path / "speech.wav").stat().st_size
        (tmp_path / "speech.wav").unlink()
    assert sizes
    assert len(set(sizes.values())) == 1
    assert max(sizes.values()) > 22050


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(page, scheme):
    colours(page, scheme)
    speak(page, TEXT)
    wait_until(lambda: page.find_elements("css selector", ".lit"))
    page.execute_script("fail('An error.'); document.getElementById('connect').hidden = false")
    assert faults(page) == []


def test_it_fits_a_phone(page):
    speak(page, "Rain fell." + "long" * 30)
    with screen(page, 320, scale=2):
        assert page.execute_script("return document.documentElement.scrollWidth") == 320


def test_no_other_script_runs(page, server):
    with urllib.request.urlopen(server.address) as response:
        policy, html = response.headers["Content-Security-Policy"], response.read().decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not [part for part in html.split('"') if part.startswith(("http:", "https:", "//"))]
    for attack in (
        "document.body.innerHTML = '<b></b>'",
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.run = 1'}))",
    ):
        with pytest.raises(Exception, match="requires 'Trusted"):
            page.execute_script(attack)
    speak(page, "<img src=x onerror='window.run = 1'>Rain fell.")
    wait_until(lambda: text_of(page, "status").startswith("Done") or text_of(page, "error"))
    assert page.execute_script("return window.run") is None
    assert not page.find_elements("css selector", "#words img")
