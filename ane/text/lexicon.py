"""List the words that the rules know: abbreviations, units, currencies, acronyms and others.

To teach the rules a word, add it to a table here.
"""

# The formatter must not rearrange these tables, whose lines are grouped by subject.
# fmt: off


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
          "november", "december")

# --- abbreviations; keys are lower case and without the final period -------------------------------------------------

# Titles before a name. Their period never ends a sentence.
TITLES = {
    "mr": "mister", "mrs": "missus", "ms": "miz", "mx": "mix", "messrs": "messers", "dr": "doctor", "drs": "doctors",
    "prof": "professor", "st": "saint", "rev": "reverend", "hon": "honorable", "fr": "father", "gen": "general",
    "col": "colonel", "maj": "major", "lt": "lieutenant", "sgt": "sergeant", "capt": "captain", "cpl": "corporal",
    "pvt": "private", "cmdr": "commander", "adm": "admiral", "gov": "governor", "sen": "senator",
    "rep": "representative", "pres": "president", "supt": "superintendent", "insp": "inspector", "mt": "mount",
    "ft": "fort", "cdr": "commander", "cpt": "captain", "brig": "brigadier", "mme": "madame", "mlle": "mademoiselle",
}
BARE_TITLES = words("mr mrs ms mx dr prof st mt lt sgt capt mme mlle")     # also without a period
# Abbreviations before a number. Their period does not end a sentence there. Elsewhere they may be words ("No.").
NUMBERED = {
    "no": "number", "nos": "numbers", "p": "page", "pp": "pages", "vol": "volume", "ch": "chapter", "fig": "figure",
    "figs": "figures", "pg": "page", "pgs": "pages",
    "sec": "section", "eq": "equation", "ext": "extension", "est": "established", "c": "circa",
    "ca": "circa", "pt": "part", "art": "article", "ver": "version", "op": "opus", "b": "born", "d": "died",
    "secs": "sections", "vols": "volumes", "chs": "chapters", "arts": "articles", "ste": "suite",
    "rm": "room", "bk": "book", "par": "paragraph", "tel": "telephone", "fn": "footnote",
    "cat": "category", "ex": "exercise", "exs": "exercises", "yr": "year", "ll": "lines",
    "cl": "clause", "para": "paragraph", "paras": "paragraphs", "eqs": "equations", "eqn": "equation",
}
# Abbreviations in any position. Their period never ends a sentence.
PHRASES = {
    "e.g": "for example", "i.e": "that is", "vs": "versus", "cf": "compare", "viz": "namely", "approx": "approximately",
    "attn": "attention", "misc": "miscellaneous", "asst": "assistant", "mgr": "manager", "op. cit": "op cit",
    "incl": "including", "excl": "excluding", "esp": "especially", "a.k.a": "also known as", "avg": "average",
}
# Abbreviations in any position. Their period may also end the sentence.
ENDINGS = {
    "etc": "et cetera", "inc": "incorporated", "corp": "corporation", "co": "company", "ltd": "limited",
    "bros": "brothers", "jr": "junior", "sr": "senior", "esq": "esquire", "ave": "avenue", "blvd": "boulevard",
    "rd": "road", "ln": "lane", "hwy": "highway", "apt": "apartment", "dept": "department", "govt": "government",
    "univ": "university", "bdrm": "bedroom", "bdrms": "bedrooms", "assn": "association",
    "intl": "international", "al": "al", "utd": "united", "spp": "species",
}
# Short forms of words, with and without a period.
SHORT_FORMS = {
    "btwn": "between", "2moro": "tomorrow", "2nite": "tonight",
    "qty": "quantity", "ea": "each", "mtg": "meeting", "mtgs": "meetings", "thx": "thanks", "pls": "please",
    "plz": "please", "ppl": "people", "gr8": "great", "l8r": "later", "idk": "I D K", "hx": "history",
    "comp. sci": "computer science", "poli. sci": "political science", "b.sc": "B S C", "m.sc": "M S C", "b.ed": "b ed",
    "m.ed": "m ed", "b.eng": "b eng", "m.eng": "m eng", "m.phil": "m phil",
}
# Short forms of the work of a person on a book or a piece of music: "ed. by J. Lee".
CREDITS = {"ed": "edited", "trans": "translated", "tr": "translated", "illus": "illustrated", "comp": "compiled",
           "arr": "arranged", "dir": "directed", "prod": "produced", "perf": "performed", "narr": "narrated"}
CREDITS |= {form.capitalize(): words for form, words in CREDITS.items()}
DAYS = {"mon": "monday", "tue": "tuesday", "tues": "tuesday", "wed": "wednesday",
        "weds": "wednesday", "thu": "thursday",
        "thur": "thursday", "thurs": "thursday", "fri": "friday", "sat": "saturday", "sun": "sunday"}

# If one of these words follows an abbreviation and is capitalised, it begins a sentence: "in the U.S. They went", but
# "the U.S. Army".
SENTENCE_STARTERS = words("""
    a after all although an and another are as at because before both but by can could did do does each even
    every everyone few for from had has have he her here his how however i i'd i'll i'm i've if in is it it's
    its just last later let many maybe meanwhile more most my next no nobody none nor not nothing now of on once
    one only or other our people perhaps please she should since so some soon still such that that's the their
    then there there's these they they're this those though thus to today tomorrow two under until was we we're
    well were what when where whether which while who why will with without would yes yesterday yet you you're
    your""")

STARTERS_IN_CAPITALS = words("the this that these those they he she it we there then but if")    # AT 10 A.M. ON FRIDAY

# --- currencies and units --------------------------------------------------------------------------------------------

CURRENCIES = {      # sign or code: the unit in singular and plural, and a hundredth of the unit in singular and plural
    "$": ("dollar", "dollars", "cent", "cents"), "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"), "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"), "₩": ("won", "won", "jeon", "jeon"),
    "₽": ("ruble", "rubles", "kopeck", "kopecks"), "¢": ("cent", "cents", "", ""),
    "₪": ("new shekel", "new shekels", "agora", "agorot"), "₺": ("lira", "lira", "kurush", "kurush"),
    "฿": ("baht", "baht", "satang", "satang"), "₦": ("naira", "naira", "kobo", "kobo"),
    "₱": ("peso", "pesos", "centavo", "centavos"), "₿": ("bitcoin", "bitcoin", "", ""), "₫": ("dong", "dong", "", ""),
    "₴": ("hryvnia", "hryvnias", "kopeck", "kopecks"), "₸": ("tenge", "tenge", "", ""),
    "₡": ("colon", "colons", "", ""), "₵": ("cedi", "cedis", "pesewa", "pesewas"), "₭": ("kip", "kip", "", ""),
    "₮": ("tugrik", "tugriks", "", ""), "₲": ("guarani", "guaranis", "", ""), "₾": ("lari", "lari", "tetri", "tetri"),
    "₼": ("manat", "manat", "", ""), "៛": ("riel", "riels", "", ""), "৳": ("taka", "taka", "", ""),
    "BRL": ("real", "reais", "centavo", "centavos"),
    "NZD": ("new zealand dollar", "new zealand dollars", "cent", "cents"),
    "HKD": ("hong kong dollar", "hong kong dollars", "cent", "cents"),
    "SGD": ("singapore dollar", "singapore dollars", "cent", "cents"), "Rs": ("rupee", "rupees", "paisa", "paise"),
    "INR": ("rupee", "rupees", "paisa", "paise"), "kr": ("krona", "kronor", "", ""),
    "zl": ("zloty", "zloty", "grosz", "groszy"), "CNY": ("yuan", "yuan", "fen", "fen"),
    "RMB": ("yuan", "yuan", "fen", "fen"), "AUD": ("australian dollar", "australian dollars", "cent", "cents"),
    "CAD": ("canadian dollar", "canadian dollars", "cent", "cents"), "KRW": ("won", "won", "jeon", "jeon"),
    "SEK": ("swedish krona", "swedish kronor", "", ""), "NOK": ("norwegian krone", "norwegian kroner", "", ""),
    "DKK": ("danish krone", "danish kroner", "", ""), "PLN": ("zloty", "zloty", "grosz", "groszy"),
    "BTC": ("bitcoin", "bitcoin", "", ""),
    "USD": ("u s dollar", "u s dollars", "cent", "cents"), "GBP": ("pound", "pounds", "penny", "pence"),
    "EUR": ("euro", "euros", "cent", "cents"), "JPY": ("yen", "yen", "sen", "sen"),
    "CHF": ("swiss franc", "swiss francs", "rappen", "rappen"),
}
DOLLARS = {         # prefix of a country's dollar sign: code of the currency
    "US": "USD", "A": "AUD", "AU": "AUD", "C": "CAD", "CA": "CAD", "NZ": "NZD", "HK": "HKD", "S": "SGD", "R": "BRL"}
MAGNITUDES = {
    "k": "thousand", "K": "thousand", "m": "million", "M": "million", "mn": "million", "mln": "million",
    "b": "billion", "B": "billion", "bn": "billion", "bln": "billion", "t": "trillion", "T": "trillion",
    "tn": "trillion", "trn": "trillion", "MM": "million",
    **{word: word for word in ("hundred", "thousand", "million", "billion", "trillion", "lakh", "crore")},
}

UNITS = {           # abbreviation: singular
    "nm": "nanometer", "µm": "micrometer", "mm": "millimeter", "cm": "centimeter", "m": "meter", "km": "kilometer",
    "ng": "nanogram", "µg": "microgram", "mcg": "microgram", "mg": "milligram", "g": "gram", "kg": "kilogram",
    "µl": "microliter", "µL": "microliter", "ml": "milliliter", "mL": "milliliter", "cl": "centiliter", "l": "liter",
    "L": "liter", "mmol": "millimole", "mol": "mole", "t": "ton", "ha": "hectare",
    "ns": "nanosecond", "µs": "microsecond", "ms": "millisecond", "s": "second",
    "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz",
    "mW": "milliwatt", "W": "watt", "kW": "kilowatt", "MW": "megawatt", "GW": "gigawatt", "TW": "terawatt",
    "Wh": "watt hour", "kWh": "kilowatt hour", "MWh": "megawatt hour", "Ah": "amp hour",
    "mAh": "milliamp hour", "mA": "milliamp",
    "mV": "millivolt", "V": "volt", "kV": "kilovolt", "J": "joule", "kJ": "kilojoule", "MJ": "megajoule",
    "Pa": "pascal", "hPa": "hectopascal", "kPa": "kilopascal", "MPa": "megapascal", "ohm": "ohm", "mohm": "milli ohm",
    "kohm": "kilo ohm", "Mohm": "mega ohm", "Gohm": "giga ohm", "µF": "microfarad", "uF": "microfarad",
    "nF": "nanofarad", "pF": "picofarad", "mF": "millifarad", "µH": "microhenry", "uH": "microhenry",
    "nH": "nanohenry", "mH": "millihenry", "µA": "microamp", "uA": "microamp", "nA": "nanoamp", "µV": "microvolt",
    "µW": "microwatt",
    "kB": "kilobyte", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "PB": "petabyte",
    "GiB": "gibibyte", "MiB": "mebibyte", "Mb": "megabit", "Gb": "gigabit", "Mbit": "megabit", "Gbit": "gigabit",
    "kbps": "kilobit per second", "Mbps": "megabit per second", "Gbps": "gigabit per second",
    "KHz": "kilohertz", "cal": "calorie", "kcal": "kilocalorie", "dB": "decibel",
    "mbar": "millibar", "mmHg": "millimeter of mercury", "mm Hg": "millimeter of mercury", "kts": "knot",
    "kton": "kiloton", "eV": "electron volt",
    "h": "hour", "hr": "hour", "hrs": "hour", "min": "minute", "mins": "minute", "sec": "second", "secs": "second",
    "yr": "year", "yrs": "year", "wk": "week", "wks": "week", "mo": "month", "mos": "month",
    "in": "inch", "ft": "foot", "yd": "yard", "yds": "yard", "mi": "mile", "oz": "ounce", "lb": "pound", "lbs": "pound",
    "gal": "gallon", "qt": "quart", "tsp": "teaspoon", "tbsp": "tablespoon", "sq ft": "square foot",
    "sq mi": "square mile", "sq km": "square kilometer", "sq m": "square meter", "fl oz": "fluid ounce",
    "mph": "mile per hour", "kph": "kilometer per hour", "kmh": "kilometer per hour", "mpg": "mile per gallon",
    "fps": "frame per second", "rpm": "revolution per minute", "dpi": "dot per inch",
    "bps": "basis point", "bpm": "beat per minute", "psi": "p s i", "px": "pixel", "pts": "point",
    "mbps": "megabit per second", "gbps": "gigabit per second", "cc": "c c", "ppm": "part per million",
    "ppb": "part per billion", "ly": "light year", "kn": "knot", "kN": "kilonewton", "kW h": "kilowatt hour",
    "N m": "newton meter",
    "hp": "horsepower", "ppi": "pixel per inch", "IU": "international unit", "atm": "atmosphere", "pct": "percent",
    "°C": "degree celsius", "°F": "degree fahrenheit", "°": "degree", "%": "percent", "‰": "per mille",
}
# After a number, these are units in capitals, too: "60 MPH", "5 Km".
UNITS |= {form: UNITS[unit] for unit in words("""
    km cm mm kg mg ml mph kph rpm mpg fps bpm dpi psi lb lbs oz ft yd yds hr hrs min mins sec secs kHz MHz GHz Hz kW kWh
    kbps mbps gbps dB kcal cc ppm gal tsp tbsp px kts""") for form in (unit.upper(), unit.lower(), unit.capitalize())
    if form not in UNITS}
# After a single digit, these are units only if a space is between: "5 s" and "30s" are seconds, but "iPhone 5s" is not.
# Abbreviations in recipes, which need a period: "1 1/2 c. flour".
RECIPE_UNITS = {"c": "cups", "Tb": "tbsp", "Tbs": "tbsp", "tbs": "tbsp", "pt": "pints", "pkg": "packages",
                "pkgs": "packages", "doz": "dozen", "qts": "qt", "lge": "large", "sm": "small"}
UNITS |= {"cups": "cup", "pints": "pint", "packages": "package"}
# Before one of these words, a unit is singular ("10 µm particles"), and a quotation mark means inches (27" monitor).
MEASURED_THINGS = words("""
    relay hurdle freestyle backstroke breaststroke butterfly pool bottle particle screen monitor display laptop tablet
    TV television cable lens pipe wheel rim bolt nail ruler plank ladder fence pizza hose wire pole rope jar tin carton
    cans bags wind headwind tailwind crosswind breeze gust
    jack plug film gun shell rifle pistol ceiling tower snake shark statue turbo engine diesel petrol hybrid battery""")
# After inches, these words are not the object that is measured: 12" apart, but a 5/8" spanner.
AFTER_INCHES = words("""
    tall high long wide deep apart thick across square around below above behind off away down up in on at by and or of
    from to for with per is are was were than then too but each only""")
# Before one of these words, a unit is singular only after a word such as "the": "the 100 m race". Elsewhere, the word
# may be a verb: "anyone over 100 kg can ride".
MEASURED_ACTIONS = words("race run walk swim dash sprint drive can bag board tube")
SPACED_UNITS = frozenset({"s", "t", "J"})
UNSPACED_UNITS = frozenset({"in"})              # "5in" is inches, but "5 in" may be "5 in the morning"
# After one of these names, a number with an s is a plural of models, not seconds: "two iPhone 15s".
MODELS = words("boeing airbus iphone ipad galaxy pixel porsche ferrari peugeot mazda cessna spitfire concorde lotus")
ISOTOPES = words("SHA AES uranium plutonium iodine cesium caesium cobalt strontium thorium")     # uranium-235
# After the name of one of these teams, 214/5 is a score of cricket.
CRICKET_TEAMS = (*words("England Australia India Pakistan Bangladesh Zimbabwe Ireland Afghanistan Kent Surrey"),
                 "New Zealand", "South Africa", "Sri Lanka", "West Indies")
IRREGULAR_PLURALS = {"foot": "feet", "inch": "inches", "hertz": "hertz", "percent": "percent", "per mille": "per mille",
                     "horsepower": "horsepower",
                     "p s i": "p s i", "c c": "c c"}
PER_WORDS = {       # words that may follow a slash, in addition to ``UNITS``: "$5/day"
    "day": "day", "week": "week", "month": "month", "year": "year", "hour": "hour", "minute": "minute",
    "second": "second", "person": "person", "night": "night", "mo": "month", "yr": "year", "hr": "hour", "d": "day",
    "head": "head", "piece": "piece", "unit": "unit", "user": "user", "share": "share", "barrel": "barrel",
    "gallon": "gallon", "mile": "mile", "acre": "acre", "page": "page", "word": "word", "capita": "capita", "H": "hour",
    "S": "second", "query": "query", "request": "request", "seat": "seat", "kilometer": "kilometer",
    "litre": "litre", "liter": "liter", "bbl": "barrel",
    "dozen": "dozen", "doz": "dozen", "pack": "pack", "bag": "bag", "box": "box", "bottle": "bottle", "pair": "pair",
    "case": "case", "room": "room", "guest": "guest", "child": "child", "adult": "adult", "ticket": "ticket",
    "session": "session", "lesson": "lesson"}

# --- formulas --------------------------------------------------------------------------------------------------------

ELEMENTS = words("""
    H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo
    Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce W Pt Au Hg Tl Pb Bi Rn Ra Th U Pu""")
NONMETALS = words("H C N O F P S Cl As Se Br Te I")      # these elements end a formula without digits: NaCl, not NeMo
NO_FORMULAS = words("NaN BeOS")                 # words made of element symbols
# If one of these words comes before < or ≤ in the same clause, the sign is read without "is": "should be ≤ 5",
# "I need ≥ 3", "with p < 0.05".
VERBS_OF_AMOUNTS = words("""
    is are was were be been being am isn't aren't wasn't weren't has have had do does did can could will would shall
    should may might must need use choose pick select take keep stay remain set get got make made want require add
    allow leave wait pay spend buy eat drink with at of for by to from all any every only than""")
# Each of these words begins a new clause: "use it if x < 5", "we know x > 0".
CLAUSE_STARTERS = words("""
    if when where while that and or but because since unless until then so suppose assume let think believe know show
    prove note""")
FUNCTIONS = {"sin": "sine", "cos": "cosine", "tan": "tangent", "log": "log", "ln": "natural log", "exp": "exp"}
TEX = {         # command of TeX: how it is read; other commands are read by their names
    "cdot": "times", "times": "times", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠",
    "approx": "≈", "pm": "±", "to": "→", "infty": "infinity", "sum": "the sum of", "int": "the integral of",
    "prod": "the product of", "lim": "the limit as", "circ": "°", "mathbb": "", "mathbf": "", "mathcal": "", "vec": "",
    "operatorname": "", "overline": "", "div": "÷", "neg": "not",
    "left": "", "right": "", "mathrm": "", "text": "", "quad": "", "ldots": "and so on", "dots": "and so on",
}

# --- words in capitals -----------------------------------------------------------------------------------------------

# Acronyms of up to three letters that are pronounced as words.
PRONOUNCED = words("RAM ROM SIM PIN LAN WAN GIF ZIP DOS HMM SHH PSST PFFT TSK BRR GRR MHM")
# Acronyms that are spelled although they look like words, and even in a headline in capitals.
SPELLED = words("""
    FBI CIA USA UK EU UN UAE UFO IBM AI API ATM CEO CFO CTO COO IOU URL IPO IQ ID TV PC DNA RNA MRI UV OS USB
    CPU GPU FAQ DIY VIP EPA FDA IRS ETA ACLU OECD IMDB ICBM UCLA YMCA AARP ESPN IEEE ASAP UNHCR MSNBC HDMI
    IMHO IVF LGBT LGBTQ CO HR ER PR UI UX VR AR EV AC IP USSR USDA USPS UPS HIV EEG ECG USAF
    TIAA NY DC MI LMAO TTYL AFK IMO TBH IDK""")
# Before one of these words, IT in a line of capitals is the initials, not the pronoun: "OUR IT TEAM".
AFTER_IT = words("""
    TEAM TEAMS DEPT DEPARTMENT DEPARTMENTS SUPPORT STAFF DESK HELPDESK MANAGER MANAGERS SECURITY SYSTEM SYSTEMS SERVICE
    SERVICES SECTOR INDUSTRY INFRASTRUCTURE CONSULTANT SPECIALIST BUDGET GROUP GUY GUYS JOB JOBS""")
# Before one of these words, US in a line of capitals is the country: "US GDP UP".
AFTER_US = words("""
    GDP ARMY NAVY MARINES GOVERNMENT PRESIDENT SENATE CONGRESS DOLLAR STOCKS TROOPS ECONOMY ELECTION
    INFLATION OFFICIALS COURT SUPREME TREASURY CITIZENS BORDER MARKETS MILITARY CUSTOMS POSTAL""")
# Words of up to three letters that are emphasised if they are in capitals. "IT" and "US" are missing, because in
# capitals they are initials.
SHORT_WORDS = words("""
    A I AH AM AN AS AT BE BY DO EH GO HA HE HI HO IF IN IS ME MY NO OF OH OK ON OR OW OX SO TO UH UM UP WE YO
    ACE ACT ADD AGE AGO AID
    AIM AIR ALL AND ANY ARE ARM ART ASK ATE BAD BAG BAN BAR BAT BED BEE BEG BET BIG BIT BOX BOY BUG BUN BUS BUT
    BUY BYE CAN CAP CAR CAT COW CRY CUP CUT DAD DAY DID DIE DIG DOG DRY DUE EAR EAT EGG END EYE FAN FAR FAT FEW
    FIT FLY FOR FOX FUN FUR GAS GET GOD GOT GUN GUY HAD HAS HAT HER HEY HIM HIS HIT HOP HOT HOW HUG ICE ILL ITS
    JOB JOY KEY KID LAW LAY LEG LET LIE LIP LOT LOW MAD MAN MAP MAY MEN MET MIX MOM MUD MUM NET NEW NOR NOT NOW
    ODD OFF OIL OLD ONE OUR OUT OWN PAY PEN PET PIE PIG POT PUT RAN RAT RAW RED RID RUN SAD SAW SAY SEA SEE SET
    SHE SHY SIR SIT SIX SKY SON SUN TAX TEA TEN THE TIE TOE TOO TOP TOY TRY TWO USE VAN WAR WAS WAY WET WHO WHY
    WIN WON YES YET YOU ZOO""")
CASE_SENSITIVE = {      # exact spelling, with capitals: how it is read
    "PhD": "p h d", "PhDs": "p h d's", "BSc": "b s c", "MSc": "m s c", "JPEG": "jay peg", "JPG": "jay peg",
    "MPEG": "em peg", "MoMA": "moma", "IPv": "i p v", "NAACP": "N double A C P", "iOS": "i o s", "macOS": "mac o s",
    "NOx": "n o x", "SOx": "s o x", "tl;dr": "t l d r", "TL;DR": "t l d r", "AKA": "also known as",
    "aka": "also known as", "Ssh": "Shh", "Ctrl": "control", "ctrl": "control", "Mme": "madame", "Mlle": "mademoiselle",
    "SoX": "sox", "YoY": "year over year", "QoQ": "quarter over quarter", "MoM": "month over month",
    "COB": "C O B", "EOB": "E O B", "openai": "open A I", "nytimes": "N Y times", "README": "read me",
    "Fwd": "forward",
    "Rx": "R X", "Dx": "D X", "HbA": "H B A", "AAA": "triple A", "Cmd": "command", "Alt-Del": "Alt Delete",
}

# --- Roman numerals --------------------------------------------------------------------------------------------------

# A Roman numeral after one of these words or their plurals is a number.
NUMERAL_AFTER = words("chapter volume book act scene article appendix canto psalm page plate")
# A Roman numeral after one of these words is a number only if the word is capitalised: "Part II", but "the part I like"
# and "type X".
NUMERAL_AFTER_CAPITALISED = words("""
    part vol section table figure exhibit annex lesson module
    type phase class war title bowl episode season level stage grade schedule lot unit group mark
    rocky fantasy""")
# A Roman numeral in small letters after one of these words is a number: "part iii".
SMALL_NUMERAL_AFTER = NUMERAL_AFTER | words("part vol section figure fig table")
# A Roman numeral after one of these abbreviations and its period is a number. Each is a key of ``NUMBERED``.
NUMERAL_ABBREVIATIONS = words("vol ch pt sec art fig figs no nos op p pp bk")
# A Roman numeral before one of these words is an ordinal number: "the XXIII Olympiad".
NUMBERED_EVENTS = words("Olympic Olympics Olympiad Paralympic Paralympics Corps Amendment Dynasty Congress")
# After one of these words, these numerals are numbers in small letters, too: "type ii". Others may be letters or words.
SMALL_CASES = words("type stage phase class grade ii iii iv vii viii ix")
# "I" before one of these words is the pronoun: "THE PART I LIKE".
AFTER_PRONOUN_I = words("""
    am was have had will would shall should can could may might must do did don't didn't won't can't never always
    also just only really think thought know knew want wanted like liked love loved hate hated need needed see saw
    say said go went get got make made take took feel felt hope wish believe remember mean meant read wrote write
    heard hear found tell told play played use used""")
# "I" between the name of a ruler and one of these words is "the first": "Charles I was king".
AFTER_RULER = words("""
    was is had has of and reigned ruled became succeeded died married ascended took wore gave made granted himself
    herself""")
# Before one of these words, "I" is "the first" only if the ruler's name begins a sentence or follows a title. The same
# holds before words in -ed, except those in FEELINGS.
DEEDS = words("""
    fought wrote led built won lost fell rose chose sent brought bought sold drew drove flew fled held kept knelt laid
    left met put sat set spoke spent stood swore taught threw wore came became began forgave forbade rode fell felt""")
FEELINGS = words("""
    wanted loved liked hated needed missed called asked noticed wished hoped admired adored trusted feared invited
    visited remembered recognised recognized tried believed learned realized realised figured guessed baked cooked
    texted emailed phoned helped hugged kissed""")
# A Roman numeral after one of these names is an ordinal number: "Henry VIII".
RULERS = words("""
    Albert Alexander Benedict Carl Catherine Charles Christian Clement Edward Elizabeth Ferdinand Francis
    Frederick George Gregory Gustav Henry Innocent Ivan James John Paul Leo Leopold Louis Mary Napoleon Nicholas
    Otto Peter Philip Pius Ramses Richard Urban Victor Wilhelm William Xerxes Darius Ludwig Alfonso Haakon Harald Olaf
    Umberto Maximilian Rudolf Sigismund Baldwin Malcolm Conrad Boniface Sixtus Julius Frederik Margrethe Isabella
    Magnus Theodosius Constantine Justinian Ptolemy""")

# A numeral after such a first name and a surname is an ordinal number: "Henry Ford II".
FIRST_NAMES = words("""
    Adam Alan Andrew Anthony Arthur Benjamin Brian Charles Clarence Daniel David Donald Edward Elliott Eric Ernest
    Francis Frank Frederick George Harold Harry Henry Hiram Jack Jacob James Jeffrey John Jonathan Joseph Joshua Kenneth
    Kevin Lawrence Louis Loudon Mark Matthew Michael Nathan Nicholas Oliver Patrick Paul Peter Philip Ralph Raymond
    Richard Robert Roger Ronald Russell Samuel Stephen Steven Theodore Thomas Thurston Timothy Walter William""")

# Words without a vowel that are sounds, not initials.
INTERJECTIONS = words("hmph hm hmm mm mhm sh shh psst pst pfft tsk brr grr nth zz")
# After one of these words, a capital letter is a label, not an article or an abbreviation: "Plan A", "Class D. 4 went".
LETTERED = words("""
    plan vitamin hepatitis group class grade type section option team level point exhibit schedule appendix figure fig
    part block building answer door size model route line table annex column row seat gate zone wing unit lane variant
    choice question step phase ward tier company platform terminal bay drive letter string note influenza category
    version room train bus series division league pool stage side key dot""")
# After one of these words, a capital A is the letter: "the A train".
DETERMINERS = words("the an a this that every each my your his her our their no another letter")
# Before one of these words, an A at the beginning of a sentence is the letter: "A is for apple", "A and B".
AFTER_LETTER = words("is was are and or equals means stands comes to")
BOOKS_OF_THE_BIBLE = words("""
    Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth Samuel Kings Chronicles Ezra Nehemiah Esther Job
    Psalm Psalms Proverbs Ecclesiastes Isaiah Jeremiah Lamentations Ezekiel Daniel Hosea Joel Amos Obadiah Jonah Micah
    Nahum Habakkuk Zephaniah Haggai Zechariah Malachi Matthew Mark Luke John Acts Romans Corinthians Galatians Ephesians
    Philippians Colossians Thessalonians Timothy Titus Philemon Hebrews James Peter Jude Revelation Sura Surah Quran""")

BIBLE_ABBREVIATIONS = {     # before a chapter and a verse
    "Gen": "Genesis", "Ex": "Exodus", "Exod": "Exodus", "Lev": "Leviticus", "Num": "Numbers", "Deut": "Deuteronomy",
    "Josh": "Joshua", "Judg": "Judges", "Sam": "Samuel", "Kgs": "Kings", "Chron": "Chronicles", "Chr": "Chronicles",
    "Neh": "Nehemiah", "Ps": "Psalm", "Pss": "Psalms", "Prov": "Proverbs", "Eccl": "Ecclesiastes", "Isa": "Isaiah",
    "Jer": "Jeremiah", "Lam": "Lamentations", "Ezek": "Ezekiel", "Dan": "Daniel", "Hos": "Hosea", "Mic": "Micah",
    "Zech": "Zechariah", "Mal": "Malachi", "Matt": "Matthew", "Mt": "Matthew", "Mk": "Mark", "Lk": "Luke",
    "Jn": "John", "Rom": "Romans", "Cor": "Corinthians", "Gal": "Galatians", "Eph": "Ephesians",
    "Phil": "Philippians", "Col": "Colossians", "Thess": "Thessalonians", "Tim": "Timothy", "Heb": "Hebrews",
    "Jas": "James", "Pet": "Peter", "Rev": "Revelation"}

# These are books of the Bible only before a verse. Otherwise they may be other words: "I called Dan. 7 came", "Rev. 3",
# "Col. 4".
SURE_WITH_VERSE = words("Gen Ex Num Dan Josh Sam Tim Matt Phil Pet Col Rev Jn Mk Eph Mal")

# --- web addresses and markup ----------------------------------------------------------------------------------------

DOMAINS = words("""
    com org net edu gov io co uk us de fr eu ca au ai dev app info biz tv nl ch se pl cz dk jp cn nz br ru fi ly gg
    xyz""")
FILE_TYPES = words("""
    txt py js pdf exe jpg jpeg png gif mp3 mp4 wav flac csv html css json xml yaml yml md doc docx xls xlsx ppt
    pptx zip tar gz dll cpp sh ini log sql""")
# The readings of words after a dot, such as .NET. File types are spelled.
DOTTED = {ending: " ".join(ending) for ending in FILE_TYPES} | {
    "NET": "NET", "env": "env", "venv": "v env", "git": "git", "github": "github", "config": "config", "ssh": "S S H",
    "gitignore": "git ignore", "bashrc": "bash R C", "zshrc": "Z S H R C",
    "htaccess": "H T access", "com": "com", "org": "org", "net": "net", "edu": "E D U", "gov": "gov", "info": "info",
    "app": "app", "dev": "dev", "io": "I O", "ai": "A I", "co": "co"}
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

# A user's lexicon can have an entry for a word as a noun, which applies after a word of NOUN_AFTER, and another one for
# it as a verb, which applies after a word of VERB_AFTER.
NOUN_AFTER = words("""
    a an the this that these those my your his her its our their no some any each every another""")
VERB_AFTER = words("""
    to i you we they who not never always also just please let's will would can could shall should may might must do
    does did don't doesn't didn't won't wouldn't can't cannot couldn't shouldn't mustn't i'll you'll he'll she'll it'll
    we'll they'll i'd you'd he'd she'd we'd they'd""")
