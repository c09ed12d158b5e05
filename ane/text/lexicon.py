"""Word lists and tables of abbreviations, units, currencies, magnitudes and acronyms. Extend them here."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
          "november", "december")

# --- abbreviations; keys are lower case and without the final period -------------------------------------------------

# Before a name; they never end a sentence.
TITLES = {
    "mr": "mister", "mrs": "missus", "ms": "miz", "mx": "mix", "messrs": "messers", "dr": "doctor", "drs": "doctors",
    "prof": "professor", "st": "saint", "rev": "reverend", "hon": "honorable", "fr": "father", "gen": "general",
    "col": "colonel", "maj": "major", "lt": "lieutenant", "sgt": "sergeant", "capt": "captain", "cpl": "corporal",
    "pvt": "private", "cmdr": "commander", "adm": "admiral", "gov": "governor", "sen": "senator",
    "rep": "representative", "pres": "president", "supt": "superintendent", "insp": "inspector", "mt": "mount",
    "ft": "fort",
}
BARE_TITLES = words("mr mrs ms mx dr prof st mt lt sgt capt")     # also without a period
# Before a number, where they never end a sentence. Elsewhere they may be words ("No.").
NUMBERED = {
    "no": "number", "nos": "numbers", "p": "page", "pp": "pages", "vol": "volume", "ch": "chapter", "fig": "figure",
    "figs": "figures", "sec": "section", "eq": "equation", "ext": "extension", "est": "established", "c": "circa",
    "ca": "circa", "pt": "part", "art": "article", "ver": "version", "op": "opus", "b": "born", "d": "died",
}
# In any position; they never end a sentence.
PHRASES = {
    "e.g": "for example", "i.e": "that is", "vs": "versus", "cf": "compare", "viz": "namely", "approx": "approximately",
    "incl": "including", "excl": "excluding", "esp": "especially", "a.k.a": "also known as", "avg": "average",
}
# In any position; the period may also end the sentence.
ENDINGS = {
    "etc": "et cetera", "inc": "incorporated", "corp": "corporation", "co": "company", "ltd": "limited",
    "bros": "brothers", "jr": "junior", "sr": "senior", "esq": "esquire", "ave": "avenue", "blvd": "boulevard",
    "rd": "road", "ln": "lane", "hwy": "highway", "apt": "apartment", "dept": "department", "govt": "government",
    "univ": "university", "assn": "association", "intl": "international", "al": "al",
}
DAYS = {"mon": "monday", "tue": "tuesday", "tues": "tuesday", "wed": "wednesday", "thu": "thursday",
        "thur": "thursday", "thurs": "thursday", "fri": "friday", "sat": "saturday", "sun": "sunday"}

# A capitalised word of this list after an abbreviation begins a sentence: "in the U.S. They", but "the U.S. Army".
SENTENCE_STARTERS = words("""
    a after all although an and another are as at because before both but by can could did do does each even
    every everyone few for from had has have he her here his how however i i'd i'll i'm i've if in is it it's
    its just last later let many maybe meanwhile more most my next no nobody none nor not nothing now of on once
    one only or other our people perhaps please she should since so some soon still such that that's the their
    then there there's these they they're this those though thus to today tomorrow two under until was we we're
    well were what when where whether which while who why will with without would yes yesterday yet you you're
    your""")

# --- currencies and units --------------------------------------------------------------------------------------------

CURRENCIES = {      # sign or code: singular, plural, singular and plural of the hundredth
    "$": ("dollar", "dollars", "cent", "cents"), "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"), "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"), "₩": ("won", "won", "jeon", "jeon"),
    "₽": ("ruble", "rubles", "kopeck", "kopecks"), "¢": ("cent", "cents", "", ""),
    "USD": ("u s dollar", "u s dollars", "cent", "cents"), "GBP": ("pound", "pounds", "penny", "pence"),
    "EUR": ("euro", "euros", "cent", "cents"), "JPY": ("yen", "yen", "sen", "sen"),
    "CHF": ("swiss franc", "swiss francs", "rappen", "rappen"),
}
DOLLARS = {"US": "u s", "A": "australian", "AU": "australian", "C": "canadian", "CA": "canadian", "NZ": "new zealand",
           "HK": "hong kong", "S": "singapore"}
MAGNITUDES = {
    "k": "thousand", "K": "thousand", "m": "million", "M": "million", "mn": "million", "mln": "million",
    "b": "billion", "B": "billion", "bn": "billion", "bln": "billion", "t": "trillion", "T": "trillion",
    "tn": "trillion", "trn": "trillion",
    **{word: word for word in ("hundred", "thousand", "million", "billion", "trillion")},
}

UNITS = {           # abbreviation: singular
    "nm": "nanometer", "µm": "micrometer", "mm": "millimeter", "cm": "centimeter", "m": "meter", "km": "kilometer",
    "ng": "nanogram", "µg": "microgram", "mcg": "microgram", "mg": "milligram", "g": "gram", "kg": "kilogram",
    "µl": "microliter", "µL": "microliter", "ml": "milliliter", "mL": "milliliter", "cl": "centiliter", "l": "liter",
    "L": "liter", "mmol": "millimole", "mol": "mole", "t": "ton", "ha": "hectare",
    "ns": "nanosecond", "µs": "microsecond", "ms": "millisecond", "s": "second",
    "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz",
    "mW": "milliwatt", "W": "watt", "kW": "kilowatt", "MW": "megawatt", "GW": "gigawatt", "TW": "terawatt",
    "Wh": "watt hour", "kWh": "kilowatt hour", "MWh": "megawatt hour", "mAh": "milliamp hour", "mA": "milliamp",
    "mV": "millivolt", "V": "volt", "kV": "kilovolt", "J": "joule", "kJ": "kilojoule", "MJ": "megajoule",
    "Pa": "pascal", "hPa": "hectopascal", "kPa": "kilopascal", "MPa": "megapascal", "ohm": "ohm", "kohm": "kiloohm",
    "kB": "kilobyte", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "PB": "petabyte",
    "GiB": "gibibyte", "MiB": "mebibyte", "Mb": "megabit", "Gb": "gigabit", "Mbit": "megabit", "Gbit": "gigabit",
    "kbps": "kilobit per second", "Mbps": "megabit per second", "Gbps": "gigabit per second",
    "KHz": "kilohertz", "cal": "calorie", "kcal": "kilocalorie", "dB": "decibel",
    "mbar": "millibar", "mmHg": "millimeter of mercury", "eV": "electron volt",
    "h": "hour", "hr": "hour", "hrs": "hour", "min": "minute", "mins": "minute", "sec": "second", "secs": "second",
    "yr": "year", "yrs": "year", "wk": "week", "wks": "week", "mo": "month", "mos": "month",
    "in": "inch", "ft": "foot", "yd": "yard", "yds": "yard", "mi": "mile", "oz": "ounce", "lb": "pound", "lbs": "pound",
    "gal": "gallon", "qt": "quart", "tsp": "teaspoon", "tbsp": "tablespoon", "sq ft": "square foot",
    "sq mi": "square mile", "sq km": "square kilometer", "sq m": "square meter", "fl oz": "fluid ounce",
    "mph": "mile per hour", "kph": "kilometer per hour", "kmh": "kilometer per hour", "mpg": "mile per gallon",
    "fps": "frame per second", "rpm": "revolution per minute", "dpi": "dot per inch", "bpm": "beat per minute",
    "psi": "p s i", "px": "pixel", "pts": "point",
    "°C": "degree celsius", "°F": "degree fahrenheit", "°": "degree", "%": "percent", "‰": "per mille",
}
# Units only after a space where the number has a single digit: "5 s" and "30s" are seconds, an "iPhone 5s" is not.
SPACED_UNITS = frozenset({"s", "t", "J"})
UNSPACED_UNITS = frozenset({"in"})              # "5in" is inches, "5 in" may be "5 in the morning"
IRREGULAR_PLURALS = {"foot": "feet", "inch": "inches", "hertz": "hertz", "percent": "percent", "per mille": "per mille",
                     "p s i": "p s i"}
PER_WORDS = {       # after a slash, beside ``UNITS``: "$5/day"
    "day": "day", "week": "week", "month": "month", "year": "year", "hour": "hour", "minute": "minute",
    "second": "second", "person": "person", "night": "night", "mo": "month", "yr": "year", "hr": "hour"}

# --- words in capitals -----------------------------------------------------------------------------------------------

# Acronyms of up to three letters that are pronounced as words.
PRONOUNCED = words("RAM ROM SIM PIN LAN WAN GIF ZIP DOS")
# Acronyms that are spelled although they look like words, or spelled even in a headline in capitals.
SPELLED = words("""
    FBI CIA USA UK EU UN UAE UFO IBM AI API ATM CEO CFO CTO COO IOU URL IPO IQ ID TV PC DNA RNA MRI UV OS USB
    CPU GPU FAQ DIY VIP EPA FDA IRS ETA ACLU OECD IMDB ICBM UCLA YMCA AARP ESPN IEEE ASAP UNHCR MSNBC HDMI
    IMHO IVF LGBT LGBTQ USSR USDA USPS UPS HIV EEG ECG""")
# Words of up to three letters that may be in capitals for emphasis. Not "IT" and "US": in capitals they are initials.
SHORT_WORDS = words("""
    A I AM AN AS AT BE BY DO GO HE HI IF IN IS ME MY NO OF OH OK ON OR OX SO TO UP WE ACE ACT ADD AGE AGO AID
    AIM AIR ALL AND ANY ARE ARM ART ASK ATE BAD BAG BAN BAR BAT BED BEE BEG BET BIG BIT BOX BOY BUG BUN BUS BUT
    BUY BYE CAN CAP CAR CAT COW CRY CUP CUT DAD DAY DID DIE DIG DOG DRY DUE EAR EAT EGG END EYE FAN FAR FAT FEW
    FIT FLY FOR FOX FUN FUR GAS GET GOD GOT GUN GUY HAD HAS HAT HER HEY HIM HIS HIT HOP HOT HOW HUG ICE ILL ITS
    JOB JOY KEY KID LAW LAY LEG LET LIE LIP LOT LOW MAD MAN MAP MAY MEN MET MIX MOM MUD MUM NET NEW NOR NOT NOW
    ODD OFF OIL OLD ONE OUR OUT OWN PAY PEN PET PIE PIG POT PUT RAN RAT RAW RED RID RUN SAD SAW SAY SEA SEE SET
    SHE SHY SIR SIT SIX SKY SON SUN TAX TEA TEN THE TIE TOE TOO TOP TOY TRY TWO USE VAN WAR WAS WAY WET WHO WHY
    WIN WON YES YET YOU ZOO""")
CASE_SENSITIVE = {      # the exact spelling: how it is read
    "PhD": "p h d", "PhDs": "p h d's", "BSc": "b s c", "MSc": "m s c", "JPEG": "jay peg", "JPG": "jay peg",
    "MPEG": "em peg", "MoMA": "moma", "IPv": "i p v", "NAACP": "n double a c p", "iOS": "i o s", "macOS": "mac o s",
    "tl;dr": "t l d r", "TL;DR": "t l d r", "AKA": "also known as", "aka": "also known as", "Ctrl": "control",
    "ctrl": "control",
}

# --- Roman numerals --------------------------------------------------------------------------------------------------

# A Roman numeral after one of these is a number, and so is one after their plurals.
NUMERAL_AFTER = words("chapter volume book act scene article appendix canto psalm")
# After these only if they are capitalised: "Part II", but "the part I like" and "type X".
NUMERAL_AFTER_CAPITALISED = words("""
    part vol section type phase class war title bowl episode season level stage grade schedule lot unit group mark
    rocky fantasy""")
# After these with a period; each is a key of ``NUMBERED``.
NUMERAL_ABBREVIATIONS = words("vol ch pt sec art fig figs no nos op")
# "I" before one of these is the pronoun: "THE PART I LIKE".
AFTER_PRONOUN_I = words("""
    am was have had will would shall should can could may might must do did don't didn't won't can't never always
    also just only really think thought know knew want wanted like liked love loved hate hated need needed see saw
    say said go went get got make made take took feel felt hope wish believe remember mean meant read wrote write
    heard hear found tell told play played use used""")
# After the name of a ruler it is an ordinal.
RULERS = words("""
    Albert Alexander Benedict Carl Catherine Charles Christian Clement Edward Elizabeth Ferdinand Francis
    Frederick George Gregory Gustav Henry Innocent Ivan James John Paul Leo Leopold Louis Mary Napoleon Nicholas
    Otto Peter Philip Pius Ramses Richard Urban Victor Wilhelm William Xerxes Darius""")

# Words without a vowel that are sounds, not initials.
INTERJECTIONS = words("hm hmm mm mhm sh shh psst pst pfft tsk brr grr nth zz")

# --- web addresses and markup ----------------------------------------------------------------------------------------

DOMAINS = words("com org net edu gov io co uk us de fr eu ca au ai dev app info biz tv")
FILE_TYPES = words("""
    txt py js pdf exe jpg jpeg png gif mp3 mp4 wav flac csv html css json xml yaml yml md doc docx xls xlsx ppt
    pptx zip tar gz dll cpp sh ini log sql""")
HTML_ELEMENTS = words("""
    a abbr acronym address applet area article aside audio b base basefont bdi bdo big blink blockquote body br button
    canvas caption center cite code col colgroup data datalist dd del details dfn dialog dir div dl dt em embed
    fieldset figcaption figure font footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html i iframe
    img input ins kbd label legend li link main map mark marquee math menu meta meter nav nobr noframes noscript object
    ol optgroup option output p param picture pre progress q rp rt ruby s samp script search section select slot small
    source span strike strong style sub summary sup svg table tbody td template textarea tfoot th thead time title tr
    track tt u ul var video wbr""")
# HTML attributes that need no value.
HTML_ATTRIBUTES = words("""
    allowfullscreen async autofocus autoplay checked controls default defer disabled download formnovalidate hidden
    inert ismap itemscope loop multiple muted nomodule novalidate open playsinline readonly required reversed
    selected""")

# --- a user's lexicon ------------------------------------------------------------------------------------------------

# After one of these the entry for a noun applies, or that for a verb.
NOUN_AFTER = words("""
    a an the this that these those my your his her its our their no some any each every another""")
VERB_AFTER = words("""
    to i you we they who not never always also just please let's will would can could shall should may might must do
    does did don't doesn't didn't won't wouldn't can't cannot couldn't shouldn't mustn't i'll you'll he'll she'll it'll
    we'll they'll i'd you'd he'd she'd we'd they'd""")
