"""A small grammar of everyday English, for plain sentences, of which dictionaries have few."""

import random
import re

# Options of a rule are equally likely; <name> refers to another rule.
GRAMMAR: dict[str, str] = {
    "sentence": "<statement>.|<statement>.|<statement>.|<statement>.|<question>?|<command>.|<statement>, <join> "
                "<statement>.|<when>, <statement>.|<exclaim>!|<count>.",
    "join": "and|but|so|because|and then|while|although|or",
    "statement": "<person> <past> <thing>|<person> <past> <thing> <place>|<person> <past> <thing> <time>|<person> "
                 "<went> <place> <time>|<the> <noun> is <adjective>|<the> <noun> was very <adjective>|<the> "
                 "<adjective> <noun> is <place>|<person> <wants> to <verb> <thing>|<person> <wants> to <verb> <thing> "
                 "<time>|there is <thing> <place>|there are <number> <nouns> <place>|<pronoun> <aux> <verb> <thing>|"
                 "<pronoun> <aux> <verb> <thing> <place>|it is <adjective> <time>|it was <adverb> <adjective> <place>|"
                 "my <family> <past> <thing>|<the> <noun> of <the> <noun> is <adjective>|<pronoun> have <number> "
                 "<nouns>|<nouns> are <adverb> <adjective>|<the> <noun> <past> <the> <noun>|<pronoun> <think> that "
                 "<statement>|<person> said that <statement>|<person> and <person> <went> <place>|<person> will "
                 "<verb> <thing>|the <noun> <went> <place>|<person> looked at <thing> <place>|<person> never <past> "
                 "<thing>|some <nouns> are <adjective> and some are <adjective>|the <nouns> were <adjective> <time>|"
                 "this <noun> costs <number> dollars|we need <number> more <nouns>|he is <number> years old|"
                 "her <body> <hurt>|the color of the <noun> is <color>|<person> wore a <color> <clothes>",
    "question": "did <person> <verb> <thing>|where is <thing>|<who> <past> <thing>|can you <verb> <thing>|do you "
                "<verb> <nouns>|would you like some <food>|why did <person> <verb> <thing> <time>|when will <person> "
                "<verb> <thing>|is <the> <noun> <adjective>|have you seen <thing>|how many <nouns> are there <place>|"
                "what time is it|how much is this <noun>|could you please <verb> <thing>|are you <adjective>",
    "command": "please <verb> <thing>|do not <verb> <thing>|let us <verb> <thing>|<verb> <thing> <place>|tell "
               "<person> about <thing>|take <thing> and <verb> it|turn <direction> at the <noun>|give me the <noun>|"
               "put the <noun> <place>|call me <time>|be <adjective>|listen to <person>",
    "exclaim": "what a <adjective> <noun>|how <adjective>|<person> is so <adjective>|i <love> <nouns>|look at "
               "<thing>|thank you for <thing>|good <greeting>, <name>|hello, <name>|happy birthday, <name>",
    "count": "<number>, <number>, <number>|the number is <number> <number> <number>|<number> and <number> make "
             "<number>|it is <number> o'clock|on the <ordinal> of <month>|in <month> and in <month>|page <number>|"
             "<number> percent of the <nouns>|<weekday>, <month> the <ordinal>|nineteen <number>|two thousand and "
             "<number>",
    "thing": "<the> <noun>|<the> <noun>|a <noun>|<the> <adjective> <noun>|<number> <nouns>|some <food>|<nouns>|"
             "<the> <color> <noun>|my <noun>|your <noun>|her <noun>|his <noun>|our <noun>|their <nouns>|every <noun>|"
             "another <noun>|a new <noun>|the old <noun>|a cup of <drink>|a piece of <food>",
    "the": "the|the|the|this|that|a|my|our|his|her|their|your|each|one",
    "person": "he|she|they|we|i|you|<name>|<name>|my <family>|his <family>|her <family>|the <job>|the <job>|a <job>|"
              "the <family> of the <job>|everyone|nobody|someone|people|the <animal>|the children|my friend",
    "pronoun": "i|we|you|they|he and i",
    "who": "who|who else|which <job>|whose <family>",
    "aux": "can|could|will|would|should|must|may|might|did not|do not|cannot|want to|have to|need to|never|always|"
           "often|sometimes|used to|are going to",
    "think": "think|know|believe|hope|feel|guess|heard|remember|suppose|see",
    "wants": "wants|wanted|hopes|tried|likes|used|decided|needs|began|forgot|learned|promised|plans|started",
    "hurt": "hurts|is cold|was broken|feels warm|is better now",
    "love": "love|like|hate|want|need|miss|enjoy",
    "greeting": "morning|evening|afternoon|night",
    "direction": "left|right|around|back",
    "went": "went|walked|ran|drove|came|sat|stood|lived|worked|played|slept|waited|stayed|arrived|returned|traveled|"
            "moved|swam|jumped|fell|climbed|met",
    "past": "saw|took|made|found|gave|bought|sold|lost|read|wrote|heard|told|asked|liked|loved|wanted|opened|closed|"
            "cleaned|cooked|carried|broke|built|painted|caught|held|kept|left|sent|brought|learned|forgot|washed|"
            "pulled|pushed|followed|watched|called|helped|used|tried|started|finished|changed|moved|threw|drew|cut|"
            "ate|drank|counted|covered|dropped|fixed|filled|hid|knew|needed|planted|showed|shared|stopped|taught|"
            "touched|visited|won|wore|chose|enjoyed|explained|received|remembered|thanked|promised|played",
    "verb": "see|take|make|find|give|buy|sell|lose|read|write|hear|tell|ask|like|love|want|open|close|clean|cook|"
            "carry|break|build|paint|catch|hold|keep|leave|send|bring|learn|forget|wash|pull|push|follow|watch|call|"
            "help|use|try|start|finish|change|move|throw|draw|cut|eat|drink|count|cover|drop|fix|fill|hide|know|need|"
            "plant|show|share|stop|teach|touch|visit|win|wear|choose|enjoy|explain|receive|remember|thank|check",
    "place": "at home|in the <room>|on the <furniture>|near the <spot>|at the <spot>|by the <spot>|in the <spot>|"
             "behind the <noun>|under the <furniture>|over the <spot>|in the <area>|to the <spot>|from the <spot>|"
             "across the <spot>|through the <spot>|into the <room>|next to the <noun>|outside|inside|upstairs|there|"
             "here|in front of the <spot>|between the <noun> and the <noun>|around the <spot>|to school|at work|"
             "in <town>|to <town>|on the other side of the <spot>|along the <spot>|with my <family>|with the <noun>",
    "time": "today|tomorrow|yesterday|last <period>|next <period>|every <period>|in the <daypart>|at night|at noon|"
            "on <weekday>|this <period>|all <daypart>|before <meal>|after <meal>|at <number> o'clock|in <month>|"
            "for <number> <periods>|<number> <periods> ago|again|now|soon|later|already|for a long time|early in the "
            "<daypart>|late at night|right away|once a <period>|in the <season>|on time",
    "when": "yesterday|today|tomorrow|last <period>|in the <daypart>|after <meal>|before <meal>|sometimes|one day|on "
            "<weekday>|in <month>|at first|of course|at last|<number> <periods> ago|in the <season>|when it rains|"
            "if you like|however|for example|finally|suddenly|yes|no|well|perhaps|once upon a time",
    "daypart": "morning|evening|afternoon|night|day",
    "period": "day|week|month|year|night|morning|evening|summer|winter|weekend|hour",
    "periods": "days|weeks|months|years|nights|hours|minutes|seconds",
    "season": "spring|summer|autumn|winter|fall",
    "weekday": "monday|tuesday|wednesday|thursday|friday|saturday|sunday",
    "month": "january|february|march|april|may|june|july|august|september|october|november|december",
    "meal": "breakfast|lunch|dinner|school|work|supper|the game|the meeting|the war|the storm",
    "number": "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|"
              "seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|twenty <digit>|"
              "thirty <digit>|forty <digit>|fifty <digit>|sixty <digit>|seventy <digit>|eighty <digit>|ninety <digit>|"
              "one hundred|<digit> hundred|<digit> thousand|<digit> million|a hundred|<digit> hundred and <digit>",
    "digit": "one|two|three|four|five|six|seven|eight|nine",
    "ordinal": "first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|"
               "fifteenth|twentieth|twenty first|twenty second|thirtieth|last|next",
    "color": "red|blue|green|yellow|black|white|brown|gray|pink|purple|orange|golden|silver|dark|light|bright",
    "name": "john|mary|peter|anna|tom|sarah|david|james|emma|jack|lucy|michael|george|alice|robert|helen|paul|kate|"
            "daniel|maria|henry|jane|mark|susan|william|laura|steven|julia|frank|rose|charles|elizabeth|mister brown|"
            "missus smith|doctor jones|miss green|uncle bob|aunt martha",
    "town": "london|paris|new york|boston|chicago|texas|canada|england|america|germany|france|africa|china|japan|"
            "the city|the town|the village|the country",
    "family": "mother|father|brother|sister|son|daughter|uncle|aunt|friend|wife|husband|cousin|grandmother|"
              "grandfather|neighbor|parents|child|family|baby|dog|cat|boss|teacher",
    "job": "teacher|doctor|farmer|driver|nurse|student|worker|writer|king|queen|captain|soldier|lawyer|baker|artist|"
           "police officer|engineer|cook|judge|president|singer|actor|manager|scientist|sailor|hunter|boy|girl|man|"
           "woman|lady|gentleman|stranger|guest|customer|player|coach|waiter|pilot|reporter",
    "animal": "dog|cat|horse|cow|bird|fish|sheep|pig|chicken|duck|rabbit|mouse|bear|lion|tiger|elephant|monkey|snake|"
              "frog|fox|wolf|bee|deer|goat|turtle|owl|eagle|spider|butterfly|ant|whale|kitten|puppy",
    "room": "kitchen|garden|bedroom|bathroom|living room|office|hall|attic|basement|garage|yard|classroom|library|"
            "house|car|box|bag|pocket|bus|train|hospital|church|shop|restaurant|hotel|theater|museum|barn|cave",
    "furniture": "table|chair|bed|floor|shelf|desk|wall|door|roof|sofa|couch|ground|plate|stove|counter|bench|grass|"
                 "stairs|map|paper|page|screen|wagon|boat",
    "spot": "river|lake|sea|beach|hill|mountain|road|street|bridge|park|school|station|store|market|town|village|"
            "city|farm|field|forest|woods|window|gate|fence|corner|tree|tower|castle|airport|bank|post office|island|"
            "ocean|valley|desert|garden|path|pond|shore|square|playground|harbor|border|highway|tunnel|field",
    "area": "north|south|east|west|middle|center|country|world|sky|air|water|sun|rain|snow|dark|cold|shade|picture|"
            "story|book|beginning|end|crowd|distance|past|future|morning light",
    "body": "hand|arm|leg|foot|head|back|knee|nose|mouth|ear|eye|finger|shoulder|stomach|heart|tooth|neck|face|hair",
    "clothes": "hat|coat|dress|shirt|jacket|scarf|sweater|skirt|suit|tie|belt|pair of shoes|pair of gloves|cap|ring",
    "drink": "tea|coffee|milk|water|juice|hot chocolate|soup|wine|lemonade",
    "food": "bread|cheese|butter|cake|rice|meat|chicken|fish|soup|salad|fruit|sugar|salt|honey|chocolate|ice cream|"
            "apple pie|pizza|corn|beans|potatoes|tomatoes|carrots|onions|eggs|cookies|candy|jam|pepper|bacon|toast|"
            "oranges|bananas|grapes|cherries|strawberries|lemons|peas|nuts|oil|flour|sandwiches|vegetables",
    "noun": "<animal>|<job>|<family>|<room>|<furniture>|<spot>|<object>|<object>|<object>|<object>|<idea>|<idea>|"
            "<clothes>|<body>",
    "object": "book|letter|key|clock|watch|phone|picture|ball|game|toy|lamp|light|candle|knife|spoon|fork|cup|glass|"
              "bottle|box|bag|basket|ticket|coin|card|camera|radio|computer|television|machine|engine|wheel|boat|ship|"
              "plane|bicycle|truck|flower|leaf|seed|stone|rock|stick|rope|hammer|nail|tool|brush|pen|pencil|newspaper|"
              "magazine|map|flag|bell|drum|guitar|piano|violin|song|gift|present|pillow|blanket|towel|mirror|umbrella|"
              "wallet|purse|bucket|ladder|shovel|tent|fire|cloud|star|moon|nest|feather|egg|apple|orange|pie|meal|"
              "medicine|bandage|chain|wire|pipe|oven|kettle|bowl|dish|pan|suitcase|package|envelope|stamp|calendar",
    "idea": "idea|plan|problem|question|answer|story|lesson|job|party|meeting|trip|journey|holiday|war|law|rule|"
            "reason|chance|choice|change|dream|name|word|language|music|noise|voice|sound|color|shape|size|price|"
            "money|bill|test|race|team|club|group|class|history|science|weather|storm|wind|accident|mistake|secret|"
            "message|report|speech|truth|power|peace|health|fear|joy|anger|hope|love|life|death|age|number|list|"
            "example|government|company|business|project|program|system|service|interest|decision|experience|"
            "education|television show|movie|joke|habit|vacation|wedding|birthday|promise|victory|adventure",
    "nouns": "dogs|cats|horses|birds|trees|flowers|books|letters|houses|cars|people|children|men|women|boys|girls|"
             "friends|students|teachers|words|stories|songs|pictures|games|toys|stars|clouds|hills|rivers|stones|"
             "boxes|bottles|glasses|cups|plates|tickets|coins|cards|keys|windows|doors|rooms|chairs|tables|shoes|"
             "clothes|hands|eyes|ideas|questions|answers|problems|rules|days|hours|years|things|places|cities|"
             "countries|boats|ships|planes|trains|machines|computers|tools|apples|oranges|cookies|sandwiches|eggs|"
             "potatoes|leaves|sheep|fish|mice|monkeys|elephants|butterflies|babies|families|parties|wishes|"
             "dishes|benches|brushes|churches|soldiers|farmers|workers|customers|visitors|neighbors|pages|miles|pounds",
    "adjective": "good|bad|big|small|large|little|long|short|tall|high|low|old|young|new|hot|cold|warm|cool|wet|dry|"
                 "clean|dirty|fast|slow|quick|early|late|easy|hard|difficult|simple|heavy|light|dark|bright|loud|"
                 "quiet|happy|sad|angry|afraid|tired|hungry|thirsty|sick|healthy|strong|weak|rich|poor|kind|nice|"
                 "beautiful|ugly|pretty|strange|funny|serious|important|famous|popular|common|rare|special|different|"
                 "same|full|empty|open|closed|free|busy|ready|safe|dangerous|true|false|real|wrong|right|sweet|sour|"
                 "soft|smooth|rough|sharp|round|flat|deep|wide|narrow|thick|thin|cheap|expensive|wonderful|terrible|"
                 "perfect|careful|brave|clever|stupid|lazy|honest|polite|rude|lonely|lucky|proud|shy|crazy|calm|fresh|"
                 "delicious|broken|lost|hidden|wooden|golden|friendly|useful|interesting|boring|exciting|amazing|"
                 "possible|impossible|enormous|tiny|ancient|modern|foreign|local|public|private|sleepy|cloudy|sunny|"
                 "rainy|windy|frozen|gentle|noisy|nervous|patient|jealous|comfortable|invisible|natural|normal",
    "adverb": "very|really|quite|so|too|almost|always|never|often|usually|rather|still|only|surprisingly|completely|"
              "extremely|probably|certainly|especially",
}
RULES = {name: options.split("|") for name, options in GRAMMAR.items()}


def plain_sentence(rng: random.Random, rule: str = "sentence", depth: int = 0) -> str:
    """A random expansion of a rule; the nesting of statements is limited."""
    option = rng.choice(RULES[rule])
    while depth > 3 and "<statement>" in option:
        option = rng.choice(RULES[rule])
    return re.sub(r"<(\w+)>", lambda match: plain_sentence(rng, match[1], depth + 1), option)
