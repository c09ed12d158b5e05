"""The card of a bundle."""

from training.publish import LICENCES, data_section, score_section


def test_the_card_states_teachers_with_their_licences_and_scores():
    data = data_section({"teachers": ["hibari heart", "kokoro am_michael"], "hours": {"heart": 2.0, "michael": 0.5},
                         "clips": 10, "held_back": 0.2})
    for part in (LICENCES["hibari"], LICENCES["kokoro"], "2.0 hours of heart", "20% of the clips", "Princeton"):
        assert part in data
    row = {"competitor": "fastest", "settings": {"voice": "heart"}, "value": {"median": 3.5, "low": 3.25, "high": 3.75},
           "figures": {"wer": 0.02, "dnsmos": 3.1, "f0": 200.4}}
    scores = score_section({"settings": {"sentences": 40}, "rows": [row]})
    assert "| fastest | heart | 3.50 | 3.25–3.75 | 0.020 | 3.10 | 200 |" in scores
