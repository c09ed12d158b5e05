"""Test that prose gets no harder to read: no rule of tools/source/prose.py has more hits than prose.json allows."""

import json
from pathlib import Path

from tools.source import prose
from tools.source.prose import COUNTS, RULES, Hit, counts, hits

FOLDED = '''"""What the job needs."""


def chunks(text):
    """The chunks of a text; one at least.

    Args:
        text: of the request. None: there is none.
    """
    # by what the server goes on with
    raise ValueError(f"{text} is no text")
'''


def test_no_rule_is_broken_more_often_than_before() -> None:
    allowed = json.loads(COUNTS.read_text(encoding="utf-8"))
    grown = {
        f"{rule}: {RULES[rule][0]}": f"{count}, at most {allowed[rule]}"
        for rule, count in counts().items()
        if count > allowed[rule]
    }
    assert not grown, "rewrite the new sentences: python -m tools.source.prose RULE lists every place"


def test_folded_sentences_of_a_file_are_found(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "ane").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "ane" / "job.py").write_text(FOLDED, encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_text("Of books it reads 1, 2, 3 and 4. `a;b`\n\n```\na; b\n```\n", encoding="utf-8")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "sources", lambda *folders: list(tmp_path.glob("ane/*.py")))
    broken: list[Hit] = list(hits())
    assert {hit.rule for hit in broken} == set(RULES)
    assert [hit.place for hit in broken if hit.rule == "semicolon"] == ["ane/job.py:4"]
