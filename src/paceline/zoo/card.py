"""The model cards, generated from the recipe's own record so that text and numbers always agree."""

from __future__ import annotations

import shlex
from typing import Any

from paceline.zoo.options import DRAFT, SHARED, SIZES
from paceline.zoo.sources import MIXTURE

LICENCES = {
    "e2e/train.jsonl": "E2E restaurant descriptions (tuetschek/e2e-dataset, by way of "
    "harvardnlp/neural-template-gen), CC BY-SA 4.0",
    "wikisql/train.jsonl": "WikiSQL questions with readable SQL (jkkummerfeld/text2sql-data), BSD",
    "gsm8k/train.jsonl": "GSM8K school problems (openai/grade-school-math), MIT",
    "python_algorithms/thealgorithms_py.jsonl.gz": "TheAlgorithms/Python, MIT",
    "tinystories/val_decoded.txt": "TinyStories, validation part, CDLA-Sharing-1.0",
    "novels100/novels100_train.txt.gz": "95 novels in English, public domain",
}

PROMPTS = """\
## Prompts

Text of the kind it was trained on, each document ended by `<|endoftext|>`; nothing is put before the first token.
The tokenizer has the recipe's chat template, `<|user|>...<|end|><|assistant|>...<|end|>`, which means something only
where that text holds such turns.
"""

MIXED_PROMPTS = """\
## Prompts

Each document is one of these, ended by `<|endoftext|>`; nothing is put before the first token. A
tagged prompt ends with its tag and **no space**; the answer begins with one.

    mr: name[The Mill], food[English], area[riverside] => text
    question: How many players scored 21 points? => sql
    problem: Tom has 3 bags of 4 apples. How many apples has he? => answer

Stories, novels and Python code are plain text. Chat uses the tokenizer's chat template:
`<|user|>...<|end|><|assistant|>...<|end|>`; generation stops at `<|end|>` or `<|endoftext|>`.
"""


LIMITS = """\
Anything but showing and testing speculative decoding. It knows few facts, and it repeats the biases of its data.
It was not aligned or filtered in any way. Do not show its text to users as information.
"""

MIXED_LIMITS = """\
Anything but showing and testing speculative decoding. It knows no facts, its sums are mostly wrong, its
SQL guesses column names (it never sees a table), its code rarely runs, and its prose loses the thread
within a few sentences. It repeats the biases of its data, the novels' above all (mostly of the 19th
century). It was not aligned or filtered in any way. Do not show its text to users as information.
"""


def is_mixed(recipe: dict[str, Any]) -> bool:
    """Whether the models were trained on the built-in mixture, not on a user's own text."""
    return recipe["data"]["shares"].keys() == MIXTURE.keys()


def options_line(options: dict[str, Any], names: tuple[str, ...]) -> str:
    """The named options as typed on the command line."""
    words = []
    for name in names:
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if options[name] is True else [f"{flag} {options[name]}"]
    return " ".join(words)


def commands(recipe: dict[str, Any], name: str) -> str:
    """The command lines that make the models again."""
    made = recipe["stages"]["target"]["options"]
    mixed = is_mixed(recipe)
    data = "--data FOLDER" if mixed else " ".join(f"--text {shlex.quote(file)}" for file in recipe["data"]["files_sha256"])
    call = f"python -m paceline.zoo.train {data} --what"
    lines = [f"{call} tokenizer {options_line(made, ('seed', 'vocab_size', 'context'))}"]
    for stage, sizes in (("target", SIZES), ("draft", DRAFT)):
        record = recipe["stages"][stage]
        options = record["options"]
        length = "--steps" if stage == "target" else "--draft-steps"
        names = SHARED + sizes + (("compiled",) if options["compiled"] else ())
        begin = f"{call} {stage} {length} {record['steps']}"
        lines.append(f"{begin} {options_line(options, names)}")
    lines.append(f"{call} export --name {shlex.quote(name)}" + ("" if mixed else " --weights FOLDER"))
    return "\n".join(f"    {line}" for line in lines)


def table(recipe: dict[str, Any]) -> str:
    """Held-out numbers per domain."""
    rows = [
        "| domain | tokens measured | target loss | draft loss | same argmax | acceptance |",
        "|---|---|---|---|---|---|",
    ]
    for domain, values in recipe["held_out"].items():
        rows.append(
            f"| {domain} | {values['tokens']:,} | {values['target_loss']:.3f} | "
            f"{values['draft_loss']:.3f} | {values['same_argmax']:.3f} | {values['acceptance']:.3f} |"
        )
    return "\n".join(rows)


def data_section(recipe: dict[str, Any]) -> str:
    data = recipe["data"]
    footer = "Hashes, token counts and versions are in `recipe.json`."
    if not is_mixed(recipe):
        lines = [f"- `{name}`" for name in data["files_sha256"]]
        return "\n".join([*lines, "", "About 2 % of the documents were held out.", footer])
    lines = [f"- `{name}`: {LICENCES[name]}" for name in data["files_sha256"] if name in LICENCES]
    shares = ", ".join(f"{domain} {share:.0%}" for domain, share in data["shares"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Shares of the training tokens: {shares}. The dev files of E2E and WikiSQL, about 2 % of the",
            "other documents and the end of the novels' text were held out. The chat turns are made from the same tasks.",
            footer,
        ]
    )


def body(recipe: dict[str, Any], name: str) -> str:
    """The part common to both cards."""
    mixed = is_mixed(recipe)
    curves = "Loss curves: `docs/images/zoo-loss.png` in the source tree. " if mixed else ""
    return f"""\
{MIXED_PROMPTS if mixed else PROMPTS}
## Data{" and licences" if mixed else ""}

{data_section(recipe)}

## Held-out measurements

Losses are nats per token, each document read from its beginning; fp16 weights, fp32 arithmetic. "Same
argmax" and "acceptance" (mean of the sum over tokens of the smaller of the two probabilities) measure how
well the draft model predicts the target, token by token.

{table(recipe)}

## What it is not good for

{MIXED_LIMITS if mixed else LIMITS}
## Make it again

{commands(recipe, name)}

{curves}Threads and compilers change the order of
sums, so another machine gives other weights of the same quality.
"""


def machine(recipe: dict[str, Any]) -> str:
    """The hardware that the embedded models were trained on; empty for others, as it is unknown."""
    return " on two CPU cores" if is_mixed(recipe) else ""


def target_card(name: str, recipe: dict[str, Any]) -> str:
    record = recipe["stages"]["target"]
    options = record["options"]
    made = "the embedded target of Paceline" if is_mixed(recipe) else "made by the recipe of Paceline's embedded models"
    return f"""\
# {name}

A small language model of the Llama architecture, {made}. Its draft model is `{name}-draft`.

- {recipe["parameters"]["target"]:,} parameters: {options["layers"]} layers, hidden size {options["hidden"]},
  {options["heads"]} heads over {options["kv_heads"]} kv heads, tied embeddings
- byte-level BPE vocabulary of {options["vocab_size"]:,}, context {options["context"]:,} tokens
- trained for {record["steps"]:,} steps on {record["tokens_seen"] / 1e6:.1f} million tokens,
  {record["training_minutes"]:.0f} minutes{machine(recipe)}

{body(recipe, name)}"""


def draft_card(name: str, recipe: dict[str, Any]) -> str:
    record = recipe["stages"]["draft"]
    options = record["options"]
    return f"""\
# {name}-draft

The draft model of `{name}`, of no use by itself.

- {recipe["parameters"]["draft"]:,} parameters: {options["draft_layers"]} layers, hidden size {options["draft_hidden"]}
- the target's tokenizer and context
- distilled from the target's whole distributions for {record["steps"]:,} steps over
  {record["tokens_seen"] / 1e6:.1f} million tokens, {record["training_minutes"]:.0f} minutes{machine(recipe)}

{body(recipe, name)}"""
