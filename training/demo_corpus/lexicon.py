"""The words of the corpus, in semantic classes: which verb takes which nouns, which noun which adjectives.

Every word has one translation here, so that a translation is determined by its source. "The fish" stays in the
singular for that reason, and nouns whose German gender depends on the person meant (teacher, friend, student)
are left out.
"""

from dataclasses import dataclass

from .grammar import Name, Noun, Place, Pronoun, Verb

# English, German stem before an ending (the predicative form where it differs is in PREDICATIVE).
ADJECTIVES: dict[str, str] = {
    english: german
    for english, _, german in (
        pair.partition(":")
        for pair in (
            "fresh:frisch big:groß small:klein delicious:lecker hot:heiß cold:kalt red:rot blue:blau green:grün "
            "black:schwarz white:weiß brown:braun new:neu old:alt expensive:teur cheap:billig long:lang short:kurz "
            "interesting:interessant boring:langweilig fast:schnell comfortable:bequem beautiful:schön "
            "famous:berühmt young:jung friendly:freundlich tired:müd happy:glücklich little:klein"
        ).split()
    )
}
PREDICATIVE = {"teur": "teuer", "müd": "müde"}

PRONOUNS = [
    Pronoun("I", "ich", "1s"),
    Pronoun("you", "du", "2s"),  # always one friend; "du" is the only reading in the corpus
    Pronoun("he", "er", "3s"),
    Pronoun("she", "sie", "3s"),
    Pronoun("we", "wir", "1p"),
    Pronoun("they", "sie", "3p"),
]
OWN = {"I": "my", "you": "your", "he": "his", "she": "her", "we": "our", "they": "their"}
NAMES = [Name(name) for name in ("Anna", "Maria", "Julia", "Peter", "Thomas", "Lukas")]

# verb: English forms | particle | German plural, ich, du, er (without prefix) | prefix | participle | flags
# Flags: stative (no progressive); habit (one does it often, every day); adult (not children); past (has a natural
# past, perfect and modals; states have none); person (its object is one); dative (and in the dative); give (recipient
# and thing); at, to (a place, a direction, no object); one (no plural objects); like (one likes apples, the apple, not
# an apple); the, a (objects with that kind of article only).
VERB_LINES = """
buy buys bought bought buying          | | kaufen kaufe kaufst kauft             | | gekauft | past
eat eats ate eaten eating              | | essen esse isst isst                  | | gegessen | past habit
drink drinks drank drunk drinking      | | trinken trinke trinkst trinkt         | | getrunken | past habit
wear wears wore worn wearing           | | tragen trage trägst trägt             | | getragen | past habit one
try tries tried tried trying           |on| probieren probiere probierst probiert |an| anprobiert | past one
read reads read read reading           | | lesen lese liest liest                | | gelesen | past habit
write writes wrote written writing     | | schreiben schreibe schreibst schreibt | | geschrieben | past habit
sell sells sold sold selling           | | verkaufen verkaufe verkaufst verkauft | | verkauft | past adult
repair repairs repaired repaired repairing | | reparieren repariere reparierst repariert | | repariert | past adult
need needs needed needed needing       | | brauchen brauche brauchst braucht     | | gebraucht | stative
see sees saw seen seeing               | | sehen sehe siehst sieht               | | gesehen | past stative
have has had had having                | | haben habe hast hat                   | | gehabt | stative a
like likes liked liked liking          | | mögen mag magst mag                   | | gemocht | stative like
look looks looked looked looking       |for| suchen suche suchst sucht           | | gesucht | past
find finds found found finding         | | finden finde findest findet           | | gefunden | past stative
wash washes washed washed washing      | | waschen wasche wäschst wäscht         | | gewaschen | past the
draw draws drew drawn drawing          | | zeichnen zeichne zeichnest zeichnet   | | gezeichnet | past habit
feed feeds fed fed feeding             | | füttern füttere fütterst füttert      | | gefüttert | past the
turn turns turned turned turning       |on| schalten schalte schaltest schaltet  |ein| eingeschaltet | past the
switch switches switched switched switching |off| schalten schalte schaltest schaltet |aus| ausgeschaltet | past the
visit visits visited visited visiting  | | besuchen besuche besuchst besucht     | | besucht | past person habit
call calls called called calling       | | rufen rufe rufst ruft                 |an| angerufen | past person habit
invite invites invited invited inviting | | laden lade lädst lädt                |ein| eingeladen | past person
pick picks picked picked picking       |up| holen hole holst holt                |ab| abgeholt | past person
know knows knew known knowing          | | kennen kenne kennst kennt             | | gekannt | stative person
help helps helped helped helping       | | helfen helfe hilfst hilft             | | geholfen | past person dative habit
thank thanks thanked thanked thanking  | | danken danke dankst dankt             | | gedankt | past person dative
give gives gave given giving           | | geben gebe gibst gibt                 | | gegeben | past give
show shows showed shown showing        | | zeigen zeige zeigst zeigt             | | gezeigt | past give
bring brings brought brought bringing  | | bringen bringe bringst bringt         | | gebracht | past give
work works worked worked working       | | arbeiten arbeite arbeitest arbeitet   | | gearbeitet | past at adult habit
play plays played played playing       | | spielen spiele spielst spielt         | | gespielt | past at habit
sing sings sang sung singing           | | singen singe singst singt             | | gesungen | past at habit
sleep sleeps slept slept sleeping      | | schlafen schlafe schläfst schläft     | | geschlafen | past at habit
wait waits waited waited waiting       | | warten warte wartest wartet           | | gewartet | past at
go goes went gone going                | | gehen gehe gehst geht                 | | gegangen | past to habit
"""

# group: verbs | adjectives (none for persons: they have their own) ; then its nouns, one a line:
# English, plural (- for none), German, gender, plural, genitive
NOUN_LINES = """
# buy eat wash | fresh big small delicious
apple apples Apfel m Äpfel Apfels
pear pears Birne f Birnen Birne
tomato tomatoes Tomate f Tomaten Tomate
# buy eat | fresh big small delicious
cake cakes Kuchen m Kuchen Kuchens
fish - Fisch m - Fischs
banana bananas Banane f Bananen Banane
egg eggs Ei n Eier Eis
roll rolls Brötchen n Brötchen Brötchens
# drink buy | hot cold
tea - Tee m - Tees
cocoa - Kakao m - Kakaos
# drink buy | cold fresh
juice - Saft m - Safts
milk - Milch f - Milch
lemonade - Limonade f - Limonade
water - Wasser n - Wassers
# buy wear try need like sell look | red blue green black white new old expensive cheap
hat hats Hut m Hüte Hutes
coat coats Mantel m Mäntel Mantels
sweater sweaters Pullover m Pullover Pullovers
jacket jackets Jacke f Jacken Jacke
cap caps Mütze f Mützen Mütze
shirt shirts Hemd n Hemden Hemdes
# buy read write like | long short new old interesting boring
novel novels Roman m Romane Romans
# read write like | long short new old interesting boring
story stories Geschichte f Geschichten Geschichte
poem poems Gedicht n Gedichte Gedichts
# buy read write like look give show | long short new old interesting boring
book books Buch n Bücher Buches
# read write find give show bring | long short new old interesting boring
letter letters Brief m Briefe Briefes
# buy read like look bring | new old interesting boring
newspaper newspapers Zeitung f Zeitungen Zeitung
# buy sell repair need turn switch | new old big small expensive cheap
radio radios Radio n Radios Radios
computer computers Computer m Computer Computers
lamp lamps Lampe f Lampen Lampe
# buy sell repair need see wash like | new old red blue black fast expensive
bicycle bicycles Fahrrad n Fahrräder Fahrrads
car cars Auto n Autos Autos
motorcycle motorcycles Motorrad n Motorräder Motorrads
# buy sell need repair like | new old big small expensive cheap comfortable
chair chairs Stuhl m Stühle Stuhls
bed beds Bett n Betten Bettes
sofa sofas Sofa n Sofas Sofas
# buy sell need repair like | new old big small expensive cheap
table tables Tisch m Tische Tisches
# see have draw feed wash like | big small black white brown old young
dog dogs Hund m Hunde Hundes
cat cats Katze f Katzen Katze
horse horses Pferd n Pferde Pferdes
cow cows Kuh f Kühe Kuh
# see draw feed have like | big small black white brown young
bird birds Vogel m Vögel Vogels
# find look need have | big small new old
key keys Schlüssel m Schlüssel Schlüssels
# find look need have give bring buy | red blue black new old big small
bag bags Tasche f Taschen Tasche
ball balls Ball m Bälle Balles
# find look need have show bring | new old big small
map maps Karte f Karten Karte
knife knives Messer n Messer Messers
# buy draw find like give show bring | red white blue small beautiful
flower flowers Blume f Blumen Blume
# buy sell like look show | big small new old expensive beautiful
picture pictures Bild n Bilder Bildes
# see draw show | old new big small beautiful
house houses Haus n Häuser Hauses
# see draw show | old new big small beautiful famous
church churches Kirche f Kirchen Kirche
bridge bridges Brücke f Brücken Brücke
tower towers Turm m Türme Turmes
castle castles Schloss n Schlösser Schlosses
"""

PERSON_LINES = """
# the this | old young friendly tired
man men Mann m Männer Mannes
woman women Frau f Frauen Frau
# the this | young friendly tired
waiter waiters Kellner m Kellner Kellners
waitress waitresses Kellnerin f Kellnerinnen Kellnerin
# the this | little friendly tired happy
child children Kind n Kinder Kindes
girl girls Mädchen n Mädchen Mädchens
boy boys Junge m Jungen Jungen
# kin | little
brother brothers Bruder m Brüder Bruders
sister sisters Schwester f Schwestern Schwester
# kin | young old
uncle uncles Onkel m Onkel Onkels
aunt aunts Tante f Tanten Tante
# kin |
father - Vater m - Vaters
mother - Mutter f - Mutter
son sons Sohn m Söhne Sohnes
daughter daughters Tochter f Töchter Tochter
parents parents Eltern p Eltern Eltern
"""
CHILDREN = ("child", "girl", "boy")
PUBLIC = ("church", "bridge", "tower", "castle")  # nobody's own

PLACES = {
    name: (Place(name, at, german_at), Place(name, to, german_to))
    for name, at, german_at, to, german_to in (
        ("garden", "in the garden", "im Garten", "into the garden", "in den Garten"),
        ("kitchen", "in the kitchen", "in der Küche", "into the kitchen", "in die Küche"),
        ("park", "in the park", "im Park", "to the park", "in den Park"),
        ("library", "in the library", "in der Bibliothek", "to the library", "in die Bibliothek"),
        ("office", "in the office", "im Büro", "to the office", "ins Büro"),
        ("restaurant", "in the restaurant", "im Restaurant", "to the restaurant", "ins Restaurant"),
        ("market", "at the market", "auf dem Markt", "to the market", "auf den Markt"),
        ("station", "at the station", "am Bahnhof", "to the station", "zum Bahnhof"),
    )
}
# Where one does what; verbs that are not named here do not take a place.
PLACES_OF = {
    "eat": "garden kitchen park restaurant",
    "drink": "garden kitchen park restaurant",
    "read": "garden park library",
    "write": "garden library office",
    "draw": "garden park",
    "buy": "market",
    "work": "garden kitchen library office restaurant market",
    "play": "garden park kitchen",
    "sing": "garden park kitchen restaurant",
    "sleep": "garden park office",
    "wait": "park restaurant market station library office",
    "go": "garden kitchen park library office restaurant market station",
}


@dataclass(frozen=True)
class Entry:
    """A noun with the verbs (or, for persons, the determiners) and the adjectives that suit it."""

    noun: Noun
    suits: frozenset[str]
    adjectives: tuple[str, ...]


def parse_verbs(lines: str) -> tuple[dict[str, Verb], dict[str, frozenset[str]]]:
    """(verb by its English base form, its flags by the same)."""
    verbs, flags = {}, {}
    for line in lines.strip().splitlines():
        english, particle, german, prefix, participle, flag_words = (part.strip() for part in line.split("|"))
        base, third, past, english_participle, progressive = english.split()
        plural, first, second, er = german.split()
        flags[base] = frozenset(flag_words.split())
        verbs[base] = Verb(
            (base, third, past, english_participle, progressive),
            particle,
            prefix,
            (plural, first, second, er),
            participle,
            auxiliary="sein" if base == "go" else "haben",
            stative="stative" in flags[base],
            case="dat" if "dative" in flags[base] else "acc",
        )
    return verbs, flags


def parse_nouns(lines: str) -> dict[str, Entry]:
    """Entries by the English singular."""
    entries: dict[str, Entry] = {}
    suits, adjectives = frozenset[str](), ()
    for line in lines.strip().splitlines():
        if line.startswith("#"):
            left, right = line[1:].split("|")
            suits, adjectives = frozenset(left.split()), tuple(right.split())
            continue
        english, plural, german, gender, german_plural, genitive = line.split()
        mass = "drink" in suits
        noun = Noun(english, plural, german, gender, german_plural, genitive, german == "Junge", mass)
        entries[english] = Entry(noun, suits, adjectives)
    return entries


VERBS, FLAGS = parse_verbs(VERB_LINES)
THINGS = parse_nouns(NOUN_LINES)
PERSONS = parse_nouns(PERSON_LINES)
