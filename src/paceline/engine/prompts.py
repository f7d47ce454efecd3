"""Built-in prompts, a few per domain of the embedded models, for the demonstration and as the default of `check`."""

from __future__ import annotations

PROMPTS: dict[str, tuple[str, ...]] = {
    "e2e": (
        "mr: name[The Phoenix], eatType[pub], food[Italian], priceRange[cheap], customerrating[high],"
        " area[riverside], familyFriendly[yes], near[Raja Indian Cuisine] => text",
        "mr: name[Blue Spice], eatType[restaurant], food[French], priceRange[more than £ 30], area[city centre],"
        " near[Burger King] => text",
        "mr: name[The Mill], eatType[coffee shop], food[Fast food], priceRange[moderate], customerrating[3 out of 5],"
        " familyFriendly[no], near[Café Sicilia] => text",
        "mr: name[Loch Fyne], food[Japanese], priceRange[£ 20 - 25], customerrating[5 out of 5], area[riverside],"
        " familyFriendly[no], near[The Rice Boat] => text",
    ),
    "sql": (
        "question: What is the highest attendance when the opponent was the Green Bay Packers? => sql",
        "question: Which player from Brazil was drafted in round 2? => sql",
        "question: How many games were played on 14 November 1998 at Boundary Park? => sql",
        "question: What is the score when the home team is Carlton and the venue is Princes Park? => sql",
    ),
    "maths": (
        "problem: Sara has 12 boxes with 8 pencils in each box. She gives 20 pencils to her friends. How many pencils does"
        " she have left? => answer",
    ),
    "story": ("Once upon a time there was a little boy who had a red kite. One day",),
    "code": ('def binary_search(sorted_collection: list[int], item: int) -> int:\n    """',),
}


def all_prompts() -> list[str]:
    return [prompt for prompts in PROMPTS.values() for prompt in prompts]
