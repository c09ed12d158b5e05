"""Say a name as you want it said: a lexicon respells words before they are read."""

import ane
from ane.text import Lexicon, LexiconEntry

voice = ane.load()
lexicon = Lexicon([LexiconEntry("Nguyen", "win"), LexiconEntry("SQL", "sequel", exact=True)])
for name, chosen in (("usual.wav", None), ("chosen.wav", lexicon)):
    voice.speak("Mr. Nguyen wrote it in SQL.", seed=1, lexicon=chosen).save(name)
    print(name)
