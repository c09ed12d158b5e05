"""Test a novel that Chromium prints as PDF: justified lines, ligatures, and first lines that are indented."""

import shutil
import subprocess

import pytest

from ane.books.reading import read_document

PARAGRAPHS = """\
The last cart left at five. Nobody saw it go but the boy on the wall, who counted carts as others do trains.
“How many?” asked Nora.
“Nine,” said the 0 boy. “The last cart left at five.”
Nora looked down the road. It was white with dust, and in the dust she saw nothing of the carts or of the men.
“Then we run.”
The door was open, and behind it the yard lay in the sun, and behind the yard the marsh began, green and flat.
“Nine,” said the boy. “The last cart left at five.”
Nora looked down the road. It was empty, and the sun stood over it as if it had nothing better to do that day.
“Are you sure?”
“They said that the last cart would leave at six, and now you tell me that the last cart left at five.”
“Well, I am only telling you what I saw, and I saw it go, and you can ask the others, and they will say so.”
She laughed, and the laugh was short, and then she put her shoe on again and looked at the sky for a while.
""".splitlines()
LAYOUTS = ("11pt/1.4 'DejaVu Serif'; 148mm 210mm", "12pt/1.3 serif; 148mm 210mm", "12pt/1.6 serif; 6in 9in")


@pytest.mark.skipif(not shutil.which("chromium"), reason="apt-get install chromium")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_paragraph_of_a_printed_novel_is_one_paragraph(tmp_path, layout):
    pytest.importorskip("pypdfium2", reason="pip install '.[books]'")
    font, size = layout.split("; ")
    texts = [text.replace("the", f"the {number}", 1) for number in range(9) for text in PARAGRAPHS]
    style = (
        f"@page {{size: {size}; margin: 18mm}} body {{font: {font}; text-align: justify}} h1 {{font-size: 16pt}} "
        "p {margin: 0; text-indent: 1.5em; orphans: 1; widows: 1}"
    )
    (tmp_path / "a.html").write_text(
        f"<meta charset=utf-8><style>{style}</style><h1>Chapter One</h1>" + "".join(f"<p>{text}</p>" for text in texts)
    )
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer")
    subprocess.run(
        ["chromium", *flags, f"--print-to-pdf={tmp_path}/a.pdf", f"{tmp_path}/a.html"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    blocks = [block for chapter in read_document(tmp_path / "a.pdf").chapters for block in chapter.blocks]
    assert [block.text for block in blocks] == ["Chapter One", *texts]
