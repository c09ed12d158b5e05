"""Say a name as you want it said. A lexicon respells words before they are read."""

import ane
from ane.text import Lexicon, LexiconEntry

voice = ane.load()
lexicon = Lexicon([LexiconEntry("Nguyen", "win"), LexiconEntry("SQL", "sequel", exact=True)])
for file, respelling in (("usual.wav", None), ("respelt.wav", lexicon)):
    voice.speak("Mr. Nguyen wrote it in SQL.", seed=1, lexicon=respelling).save(file)
    print(file)
