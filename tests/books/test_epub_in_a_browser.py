"""Test which words a reading program (foliate-js in Chromium) marks while it plays a spoken EPUB, and when."""

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.books.test_epub_output import clips, spoken  # noqa: F401  the fixture
from tests.node_packages import node_modules
from tests.server.browser import open_browser
from tests.server.server_process import wait_until

READER = "foliate-js@1.0.1"  # from npm, under the MIT licence
REPORTED = 0.4  # maximum seconds between two reports of the playing sound's position, with a margin
PAGE = """<!doctype html><meta charset="utf-8"><button>play</button><script type="module">
import "./foliate-js/view.js";
const Sound = window.Audio, marked = window.marked = [], view = document.createElement("foliate-view");
let sound;
window.Audio = function (...given) {
  sound = new Sound(...given);
  sound.addEventListener("ended", () => window.ended = true);
  return sound;
};
view.style.cssText = "display: block; height: 600px";
document.body.append(view);
const answer = await fetch("book.epub");
await view.open(new File([await answer.blob()], "book.epub"));
await view.goTo(1);
view.mediaOverlay.addEventListener("highlight", async ({detail}) => {
  const at = sound.currentTime;
  await new Promise((done) => setTimeout(done, 150));
  const {doc} = view.renderer.getContents()[0];
  marked.push([at, ...Array.from(doc.querySelectorAll(".spoken"), (one) => one.textContent)]);
});
view.mediaOverlay.addEventListener("error", ({detail}) => window.fault = String(detail));
document.querySelector("button").onclick = () => view.startMediaOverlay();
window.opened = true;
</script>"""


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *parts: object) -> None:
        """Nothing of each request is printed."""


@pytest.fixture
def address(spoken, pytestconfig, tmp_path_factory) -> Iterator[str]:  # noqa: F811
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(node_modules(pytestconfig, tmp_path_factory, READER) / "foliate-js", folder / "foliate-js")
    shutil.copy(spoken[0], folder / "book.epub")
    (folder / "index.html").write_text(PAGE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


# words are the harder case, because sentences are longer
@pytest.mark.parametrize("spoken", [True], ids=["words"], indirect=True)
def test_a_reading_system_marks_what_it_plays(spoken, address, tmp_path: Path):  # noqa: F811
    expected = clips(spoken[0], 2)
    browser = open_browser(tmp_path)
    try:
        browser.get(address)
        wait_until(lambda: browser.execute_script("return window.opened"))
        browser.find_element("css selector", "button").click()
        wait_until(lambda: browser.execute_script("return window.fault || window.ended"))
        fault, marked = browser.execute_script("return [window.fault, window.marked]")
    finally:
        browser.quit()
    assert fault is None
    starts = {text: begin for text, begin, _ in expected}
    for position, text in marked:  # a word may be missed if it is shorter than the time between two reports
        assert starts[text] - 0.05 <= position <= starts[text] + REPORTED
    assert [marked[0][1], marked[-1][1]] == [expected[0][0], expected[-1][0]]
