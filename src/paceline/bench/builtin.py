"""Built-in prompts of the embedded models' domains, and solved examples that can be put before them as context.

All were written for this file or for `engine/prompts.py`; none is from the models' training data. `copy` is for models that can
copy: the embedded one is too small and falls into loops, which drafts predict just as well.
"""

from __future__ import annotations

from random import Random
from string import ascii_lowercase

from paceline.engine.prompts import PROMPTS

BUILT_IN = ("e2e", "sql", "maths", "code", "story", "copy", "random")
"""Names of the built-in tasks; `random` is unpredictable text, to be decoded at a temperature."""

_MEANINGS = (
    "name[The Golden Palace], eatType[coffee shop], food[Indian], priceRange[cheap], customerrating[5 out of 5],"
    " area[city centre]",
    "name[Cotto], eatType[restaurant], food[English], priceRange[high], customerrating[average], near[The Portland Arms]",
    "name[Zizzi], eatType[pub], food[Chinese], priceRange[less than £ 20], familyFriendly[yes], near[Burger King]",
    "name[Giraffe], eatType[restaurant], customerrating[low], area[riverside], familyFriendly[no], near[The Bakers]",
)
_QUESTIONS = (
    "What is the average age of the drivers from Finland?",
    "Who was the winning driver when the pole position was held by Damon Hill?",
    "How many seats did the party win in the election of 1974?",
    "What is the total population of the towns with an area larger than 120?",
)
_PROBLEMS = (
    "A baker makes 15 loaves every morning and sells 11 of them. How many loaves are left after 6 days?",
    "Tom reads 24 pages on Monday and twice as many on Tuesday. How many pages does he read in both days?",
    "A train ticket costs $18. A group of 7 people pays with six $25 notes. How much change do they get?",
)
_OPENINGS = (
    "Lily and her grandmother went to the garden to look for the lost key. They looked under",
    "There was once a small green frog who wanted to sing like the birds. Every morning he",
    "Ben had a big box of blocks. He wanted to build a tower that was taller than his dad. First",
)
_STUBS = (
    'def quick_sort(collection: list) -> list:\n    """Sort a list in ascending order.\n',
    "class Node:\n    def __init__(self, data):\n        self.data = data\n",
    'def is_prime(number: int) -> bool:\n    """',
)

_DESCRIBED = (
    ("name[Blue Spice], eatType[coffee shop], area[riverside]", "Blue Spice is a coffee shop by the riverside."),
    (
        "name[The Vaults], eatType[pub], food[Japanese], priceRange[cheap], familyFriendly[yes]",
        "The Vaults is a cheap, family friendly pub that serves Japanese food.",
    ),
    (
        "name[Aromi], eatType[restaurant], food[French], customerrating[3 out of 5], area[city centre]",
        "Aromi is a French restaurant in the city centre with a customer rating of 3 out of 5.",
    ),
    (
        "name[Wildwood], eatType[coffee shop], food[English], priceRange[moderate], near[Ranch]",
        "Near Ranch there is a coffee shop called Wildwood, which offers English food at moderate prices.",
    ),
    (
        "name[Clowns], eatType[pub], customerrating[low], area[riverside], familyFriendly[no], near[All Bar One]",
        "Clowns is a pub near All Bar One on the riverside. It has a low rating and does not welcome children.",
    ),
    (
        "name[Fitzbillies], food[Italian], priceRange[more than £ 30], customerrating[high]",
        "Fitzbillies has a high customer rating and serves Italian food for more than £ 30.",
    ),
    (
        "name[The Dumpling Tree], eatType[restaurant], food[Chinese], area[city centre], near[Crowne Plaza Hotel]",
        "You can eat Chinese food at The Dumpling Tree, a restaurant near the Crowne Plaza Hotel in the city centre.",
    ),
    (
        "name[Strada], eatType[pub], food[Fast food], priceRange[cheap], area[riverside], familyFriendly[yes]",
        "Strada is a pub on the riverside where families can have cheap fast food.",
    ),
    (
        "name[The Cricketers], eatType[restaurant], customerrating[1 out of 5], familyFriendly[no], near[Rainbow Café]",
        "The Cricketers is an adult restaurant near Rainbow Café. Customers rate it 1 out of 5.",
    ),
    (
        "name[Bibimbap House], food[English], priceRange[less than £ 20], area[city centre], near[Clare Hall]",
        "Bibimbap House serves English food for less than £ 20. You find it in the city centre near Clare Hall.",
    ),
)
_QUERIED = (
    ("What is the venue of the match on 3 May?", "SELECT VENUE FROM TABLE WHERE DATE = '3 May'"),
    ("How many goals did Anna Berg score?", "SELECT COUNT GOALS FROM TABLE WHERE PLAYER = 'Anna Berg'"),
    (
        "Which school did the guard picked in round 3 attend?",
        "SELECT SCHOOL FROM TABLE WHERE POSITION = 'guard' AND ROUND = 3",
    ),
    ("What is the lowest rank of a team from Sweden?", "SELECT MIN RANK FROM TABLE WHERE NATION = 'sweden'"),
    (
        "When did the episode written by Joan Reed and directed by Tim Cole air?",
        "SELECT ORIGINAL_AIR_DATE FROM TABLE WHERE WRITTEN_BY = 'Joan Reed' AND DIRECTED_BY = 'Tim Cole'",
    ),
    ("What is the highest attendance in week 9?", "SELECT MAX ATTENDANCE FROM TABLE WHERE WEEK = 9"),
    ("Who drove for the team Silver Arrow?", "SELECT DRIVER FROM TABLE WHERE TEAM = 'silver arrow'"),
    (
        "What is the score of the game against Hill Town with a crowd above 9000?",
        "SELECT SCORE FROM TABLE WHERE OPPONENT = 'hill town' AND CROWD > 9000",
    ),
    ("How many laps did the car with a grid of 4 drive?", "SELECT LAPS FROM TABLE WHERE GRID = 4"),
    ("Which county has the number 12 and a length under 30?", "SELECT COUNTY FROM TABLE WHERE NUMBER = 12 AND LENGTH < 30"),
    ("What year was the album Night Train released?", "SELECT YEAR FROM TABLE WHERE ALBUM = 'night train'"),
    ("What is the total of gold medals of Norway?", "SELECT SUM GOLD FROM TABLE WHERE COUNTRY = 'norway'"),
    (
        "Who was the away team when the home team scored 12.9 at Lake Oval?",
        "SELECT AWAY_TEAM FROM TABLE WHERE HOME_SCORE = '12.9' AND VENUE = 'lake oval'",
    ),
)

_PASSAGE = (
    "{a} lived in a small house near the {b}. Every morning {a} put on a red hat, took the old basket and walked down to the {b}."
    ' On the way {a} met a {c}. "Good morning," said the {c}. "Where are you going?" "I am going to the {b}," said {a}, "to look'
    ' for shells." The {c} wanted to come too, so they went together. They looked and looked, and at last the {c} found a big'
    " white shell. {a} was very happy, put the shell in the basket and thanked the {c}."
)
_EDITS = (
    (("Mia", "sea", "dog"), ("Sam", "lake", "cat")),
    (("Tim", "river", "duck"), ("Anna", "sea", "fox")),
    (("Rose", "lake", "bear"), ("Max", "river", "bird")),
)


def built_in(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Prompts and solved examples of a built-in task; `name` is one of BUILT_IN."""
    if name == "copy":
        return tuple(_copied(*edits) for edits in _EDITS), ()
    if name == "random":
        return tuple(_noise(seed) for seed in range(6)), ()
    more = {
        "e2e": tuple(f"mr: {meaning} => text" for meaning in _MEANINGS),
        "sql": tuple(f"question: {question} => sql" for question in _QUESTIONS),
        "maths": tuple(f"problem: {problem} => answer" for problem in _PROBLEMS),
        "story": _OPENINGS,
        "code": _STUBS,
    }
    examples = {
        "e2e": tuple(f"mr: {meaning} => text {text}" for meaning, text in _DESCRIBED),
        "sql": tuple(f"question: {question} => sql {query}" for question, query in _QUERIED),
    }
    return PROMPTS[name] + more[name], examples.get(name, ())


def _copied(first: tuple[str, str, str], second: tuple[str, str, str]) -> str:
    """A passage, the same passage with other names, and the first one's opening again: most of the answer is in the prompt."""
    said, edited = (_PASSAGE.format(a=a, b=b, c=c) for a, b, c in (first, second))
    return f"{said}\n\n{edited}\n\n{said.partition('.')[0]}."


def _noise(seed: int) -> str:
    """Sixty random words."""
    stream = Random(seed)
    return " ".join("".join(stream.choices(ascii_lowercase, k=stream.randint(2, 7))) for _ in range(60))
