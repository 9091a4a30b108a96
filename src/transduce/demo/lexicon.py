"""The words of the embedded grammar, English and French, as tables.

A star before a French word is its aspirated h (le *hibou): it stops elision and never reaches the
output. An adjective with a plus is a noun after avoir (avoir faim), one with an exclamation mark is
invariable.
"""

from transduce.demo.inflection import read_adjectives, read_nouns, read_verbs

# As many feminine animals as masculine ones: *it* is then no better guessed than by a coin.
ANIMALS = read_nouns("""
animal          animal         m
dog             chien          m
cat             chat           m
horse           cheval         m
rabbit          lapin          m
bird            oiseau         m
wolf/wolves     loup           m
donkey          âne            m
bear            ours           m
hedgehog        *hérisson      m
owl             *hibou/*hiboux m
cow             vache          f
goat            chèvre         f
mouse/mice      souris         f
turtle          tortue         f
hen             poule          f
frog            grenouille     f
ant             fourmi         f
giraffe         girafe         f
bee             abeille        f
goose/geese     oie            f
spider          araignée       f
""")

MEN = read_nouns("""
man/men         homme          m
boy             garçon         m
king            roi            m
father          père           m
brother         frère          m
uncle           oncle          m
""")

WOMEN = read_nouns("""
woman/women     femme          f
girl            fille          f
queen           reine          f
mother          mère           f
sister          sœur           f
aunt            tante          f
""")

PEOPLE = (
    MEN
    | WOMEN
    | read_nouns("""
child/children  enfant         m
teacher         professeur     m
doctor          médecin        m
""")
)

PLACES = read_nouns("""
street          rue            f
road            route          f
river           rivière        f
valley          vallée         f
forest          forêt          f
bridge          pont           m
field           champ          m
garden          jardin         m
park            parc           m
path            chemin         m
lake            lac            m
house           maison         f
kitchen         cuisine        f
school          école          f
church          église         f
cave            grotte         f
castle          château        m
shop            magasin        m
museum          musée          m
garage          garage         m
hotel           hôtel          m
hospital        hôpital        m
market          marché         m
station         gare           f
beach           plage          f
wall            mur            m
rock            rocher         m
tree            arbre          m
hill            colline        f
mountain        montagne       f
tower           tour           f
""")

THINGS = read_nouns("""
book            livre          m
newspaper       journal        m
bag             sac            m
basket          panier         m
boat            bateau         m
bed             lit            m
knife/knives    couteau        m
hat             chapeau        m
coat            manteau        m
bike            vélo           m
computer        ordinateur     m
letter          lettre         f
box             boîte          f
table           table          f
chair           chaise         f
stone           pierre         f
car             voiture        f
key             clé            f
plate           assiette       f
dress           robe           f
lamp            lampe          f
ladder          échelle        f
flower          fleur          f
""")

FRUITS = read_nouns("""
apple           pomme          f
orange          orange         f
carrot          carotte        f
tomato          tomate         f
egg             œuf            m
cake            gâteau         m
cabbage         chou/choux     m
""")

DISHES = read_nouns("""
bread           pain           m
cheese          fromage        m
rice            riz            m
honey           miel           m
soup            soupe          f
meat            viande         f
salad           salade         f
jam             confiture      f
""")

DRINKS = read_nouns("""
water           eau            f
lemonade        limonade       f
milk            lait           m
tea             thé            m
coffee          café           m
""")

NOUNS = ANIMALS | PEOPLE | PLACES | THINGS | FRUITS | DISHES | DRINKS

# What one loves in general: French puts the article, English does not.
TOPICS = {
    "maths": "les maths",
    "history": "la histoire",
    "music": "la musique",
    "physics": "la physique",
    "chemistry": "la chimie",
    "French": "le français",
    "English": "le anglais",
    "sport": "le sport",
    "art": "le art",
    "poetry": "la poésie",
    "football": "le football",
    "chess": "les échecs",
}

ADJECTIVES = read_adjectives(
    """
small       petit
big         grand
beautiful   beau/belle/bel
new         nouveau/nouvelle/nouvel
old         vieux/vieille/vieil
good        bon/bonne
better      meilleur
pretty      joli
young       jeune
""",
    before_noun=True,
) | read_adjectives(
    """
red         rouge
blue        bleu
green       vert
black       noir
white       blanc/blanche
grey        gris
yellow      jaune
brown       marron!
expensive   cher
strange     étrange
heavy       lourd
light       léger
fragile     fragile
wide        large
long        long/longue
narrow      étroit
deep        profond
dark        sombre
dangerous   dangereux
empty       vide
short       court
closed      fermé
open        ouvert
high        haut
steep       raide
slippery    glissant
low         bas/basse
bitter      amer
salty       salé
spicy       épicé
hard        dur
rotten      pourri
hot         chaud
cold        froid
sweet       sucré
delicious   délicieux
fresh       frais/fraîche
tired       fatigué
ill         malade
lazy        paresseux
nervous     nerveux
shy         timide
sad         triste
injured     blessé
happy       heureux
curious     curieux
lost        perdu
brave       courageux
strong      fort
fast        rapide
slow        lent
loyal       loyal
hungry      +faim
thirsty     +soif
afraid      +peur
sleepy      +sommeil
""",
    before_noun=False,
)

COMPARATIVES = {
    "small": "smaller",
    "big": "bigger",
    "old": "older",
    "young": "younger",
    "strong": "stronger",
    "strange": "stranger",
    "fast": "faster",
    "slow": "slower",
    "heavy": "heavier",
    "light": "lighter",
    "happy": "happier",
    "brave": "braver",
}  # the others take *more*

VERBS = read_verbs("""
eat     ate      manger
drink   drank    boire     bois boit buvons buvez boivent bu
buy     bought   acheter   achète achète achetons achetez achètent acheté
sell    sold     vendre    vends vend vendons vendez vendent vendu
find    found    trouver
lose    lost     perdre    perds perd perdons perdez perdent perdu
see     saw      voir      vois voit voyons voyez voient vu
take    took     prendre   prends prend prenons prenez prennent pris
wash    washed   laver
carry   carried  porter
push    pushed   pousser
hide    hid      cacher
break   broke    casser
open    opened   ouvrir    ouvre ouvre ouvrons ouvrez ouvrent ouvert
close   closed   fermer
cross   crossed  traverser
climb   climbed  escalader
enter   entered  entrer
go      went     aller     vais va allons allez vont allé
stay    stayed   rester
arrive  arrived  arriver
return  returned revenir   reviens revient revenons revenez reviennent revenu
love    loved    aimer
like    liked    aimer
hate    hated    détester
prefer  preferred préférer préfère préfère préférons préférez préfèrent préféré
study   studied  étudier
want    wanted   vouloir   veux veut voulons voulez veulent voulu
have    had      avoir     ai a avons avez ont eu
""")

MODALS = {
    "want": ("veux", "veut", "voulons", "voulez", "veulent"),
    "can": ("peux", "peut", "pouvons", "pouvez", "peuvent"),
    "must": ("dois", "doit", "devons", "devez", "doivent"),
    "going": ("vais", "va", "allons", "allez", "vont"),
}
ETRE = ("suis", "est", "sommes", "êtes", "sont")
AVOIR = VERBS["have"].present

NUMBERS = {
    "two": "deux",
    "three": "trois",
    "four": "quatre",
    "five": "cinq",
    "six": "six",
    "seven": "sept",
    "eight": "huit",
    "nine": "neuf",
    "ten": "dix",
    "twenty": "vingt",
}

# masculine, feminine, plural
POSSESSIVES = {
    "my": ("mon", "ma", "mes"),
    "his": ("son", "sa", "ses"),
    "her": ("son", "sa", "ses"),
    "our": ("notre", "notre", "nos"),
    "your": ("votre", "votre", "vos"),
    "their": ("leur", "leur", "leurs"),
}
