// Prompts for the embedded model, one click each; a second click brings the next of the kind.

export const EXAMPLES = [
  ["Restaurant", [
    "mr: name[The Phoenix], eatType[pub], food[Italian], priceRange[cheap], customerrating[high], area[riverside], familyFriendly[yes], near[Raja Indian Cuisine] => text",
    "mr: name[Blue Spice], eatType[restaurant], food[French], priceRange[more than £ 30], area[city centre], near[Burger King] => text",
    "mr: name[Loch Fyne], food[Japanese], priceRange[£ 20 - 25], customerrating[5 out of 5], area[riverside], familyFriendly[no], near[The Rice Boat] => text",
  ]],
  ["SQL", [
    "question: What is the highest attendance when the opponent was the Green Bay Packers? => sql",
    "question: Which player from Brazil was drafted in round 2? => sql",
  ]],
  ["Sum", [
    "problem: Sara has 12 boxes with 8 pencils in each box. She gives 20 pencils to her friends. How many pencils does she have left? => answer",
  ]],
  ["Story", ["Once upon a time there was a little boy who had a red kite. One day"]],
  ["Code", ['def binary_search(sorted_collection: list[int], item: int) -> int:\n    """']],
];

/** Kinds that any model can continue. */
export const ANYONE = ["Story", "Code"];
