"""List the words of addresses and journeys: streets, states, towns, airlines, and words before a code or a number.

To teach the rules such a word, add it to a table here.
"""

from ane.text.lexicon import words

# The formatter must not rearrange these tables, whose lines are grouped by subject.
# fmt: off

STREETS = {
    "st": "street", "ave": "avenue", "av": "avenue", "blvd": "boulevard", "rd": "road", "ln": "lane", "dr": "drive",
    "hwy": "highway", "expy": "expressway", "expwy": "expressway", "pkwy": "parkway", "ct": "court", "pl": "place",
    "sq": "square", "ter": "terrace", "cir": "circle", "trl": "trail", "fwy": "freeway", "tpke": "turnpike",
    "plz": "plaza", "aly": "alley",
}
WITHIN_ADDRESS = {"apt": "apartment", "ste": "suite", "rm": "room", "hwy": "highway", "rte": "route", "fl": "floor",
                  "bldg": "building"}      # before a number
SURE_STREETS = words("sq ave blvd rd ln hwy expy expwy pkwy fwy tpke")     # after a name, also without a house number
DIRECTIONS = {"N": "North", "S": "South", "E": "East", "W": "West", "NE": "Northeast", "NW": "Northwest",
              "SE": "Southeast", "SW": "Southwest"}
COMPASS = {direction: name.lower() for direction, name in DIRECTIONS.items()} | {       # in weather reports
    "NNE": "north northeast", "ENE": "east northeast", "ESE": "east southeast", "SSE": "south southeast",
    "SSW": "south southwest", "WSW": "west southwest", "WNW": "west northwest", "NNW": "north northwest"}
STATES = {
    "AL": "Alabama", "AK": "Alaska", "AZ": "Arizona", "AR": "Arkansas", "CA": "California", "CO": "Colorado",
    "CT": "Connecticut", "DE": "Delaware", "FL": "Florida", "GA": "Georgia", "HI": "Hawaii", "ID": "Idaho",
    "IL": "Illinois", "IN": "Indiana", "IA": "Iowa", "KS": "Kansas", "KY": "Kentucky", "LA": "Louisiana",
    "ME": "Maine", "MD": "Maryland", "MA": "Massachusetts", "MI": "Michigan", "MN": "Minnesota", "MS": "Mississippi",
    "MO": "Missouri", "MT": "Montana", "NE": "Nebraska", "NV": "Nevada", "NH": "New Hampshire", "NJ": "New Jersey",
    "NM": "New Mexico", "NY": "New York", "NC": "North Carolina", "ND": "North Dakota", "OH": "Ohio",
    "OK": "Oklahoma", "OR": "Oregon", "PA": "Pennsylvania", "RI": "Rhode Island", "SC": "South Carolina",
    "SD": "South Dakota", "TN": "Tennessee", "TX": "Texas", "UT": "Utah", "VT": "Vermont", "VA": "Virginia",
    "WA": "Washington", "WV": "West Virginia", "WI": "Wisconsin", "WY": "Wyoming",
}
# Abbreviations of states that are also words, degrees or languages. Before a ZIP code they are states. Elsewhere they
# are states only after one of these towns, or, for those in CUED_STATES, after "in" and a name.
UNSURE_STATES = words("AL AR DE HI ID IN LA ME MS OK OR PA")
CUED_STATES = words("AL AR ID IN OR")
TOWNS = {*words("""
    Birmingham Huntsville Tuscaloosa Fayetteville Bentonville Wilmington Honolulu Hilo Kailua Kona Lahaina Boise Nampa
    Meridian Pocatello Indianapolis Bloomington Evansville Lafayette Muncie Kokomo Shreveport Metairie Houma
    Bangor Augusta Lewiston Kennebunkport Portland Biloxi Gulfport Tupelo Hattiesburg Natchez Vicksburg Tulsa Stillwater
    Lawton Edmond Salem Bend Ashland Medford Corvallis Beaverton Astoria Philadelphia Pittsburgh Allentown Scranton
    Harrisburg Bethlehem Erie Gettysburg Hershey"""),
    "Little Rock", "Fort Smith", "Hot Springs", "Rehoboth Beach", "Idaho Falls", "Coeur d'Alene", "Twin Falls",
    "Sun Valley", "Fort Wayne", "South Bend", "Terre Haute", "Baton Rouge", "Lake Charles", "Bar Harbor",
    "Oklahoma City", "New Orleans"}
OLD_STATES = {      # after a town
    "Mass": "Massachusetts", "Ill": "Illinois", "Calif": "California", "Conn": "Connecticut", "Fla": "Florida",
    "Mich": "Michigan", "Minn": "Minnesota", "Penn": "Pennsylvania", "Tenn": "Tennessee", "Tex": "Texas",
    "Va": "Virginia", "Wash": "Washington", "Wis": "Wisconsin", "Ariz": "Arizona", "Ala": "Alabama", "Colo": "Colorado",
    "Ga": "Georgia", "Kan": "Kansas", "Ky": "Kentucky", "Md": "Maryland", "Mo": "Missouri", "Neb": "Nebraska",
    "Nev": "Nevada", "Okla": "Oklahoma", "Ore": "Oregon", "Vt": "Vermont", "Wyo": "Wyoming", "Ont": "Ontario"}
# Codes and names of airlines, before the number of a flight.
AIRLINES = words("""
    AA AC AF AI AM AS AY AZ BA BR CI CX CZ DL EI EK ET EY FR GA HA IB JL JQ KE KL LH LO LX LY MH MU NH NK NZ OS OZ PK QF
    QR RJ SK SN SQ SU SV TG TK TP TR UA UX VA VN VS WN WS WY KLM SAS TAP ANA JAL Delta Lufthansa Ryanair JetBlue
    Southwest Qantas Emirates Aeroflot Speedbird""")
# A number after one of these words is read digit by digit.
CODE_WORDS = ("zip", "zip code", "postcode", "postal code", "pin", "pin code", "passcode", "ending in", "ends in",
              "account", "account number", "acct", "routing number", "serial number", "tracking number", "card number",
              "otp", "imei", "issn", "ein", "cvv", "cvc", "ssn", "reference number", "confirmation code",
              "policy number", "on port", "connect to port", "port number", "tcp port", "udp port", "open port",
              "model number", "customer number", "passport number", "phone number", "extension", "password",
              "verification code", "security code", "access code", "entry code", "door code", "gate code", "login code",
              "activation code", "area code", "enter code", "enter the code", "squawk", "squawks", "squawking", "qnh",
              "flight level")
# Telephone numbers for an emergency. After a word such as "call", and before one such as "operator", the rules read
# them digit by digit.
EMERGENCY_NUMBERS = words("911 999 112 000 111 101 110 119 988")
