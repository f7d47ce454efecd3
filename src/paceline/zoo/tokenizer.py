"""The byte-level BPE tokenizer: trained on a sample of the mixture, saved in the transformers layout.

A pre-token is a contraction, a word, one digit, a run of other signs (each with at most one blank
before it), a run of newlines, or a run of blanks. Newlines never join with what follows them, and a
word never joins with a blank after it, so a prompt that ends in a tag or in a newline tokenises to a
prefix of the prompt followed by its answer. No token is added at the beginning or at the end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline.zoo.chat import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS
from paceline.zoo.errors import RecipeError
from paceline.zoo.sources import Corpus

PRE_TOKEN = (
    r"'(?:s|t|re|ve|m|ll|d)\b| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+"
    r"|\n+|[^\S\n]+(?!\S)|[^\S\n]+"
)
SAMPLE_CHARACTERS = 12_000_000


def sample(corpus: Corpus, seed: int) -> Iterator[str]:
    """Documents of every domain, in the proportions of the mixture."""
    for domain, share in corpus.shares.items():
        draw = random.Random(f"tokenizer {domain} {seed}")
        documents = corpus.train[domain]
        left = int(SAMPLE_CHARACTERS * share)
        for document in draw.sample(documents, len(documents)):
            if left <= 0:
                break
            left -= len(document)
            yield document


def train_tokenizer(corpus: Corpus, vocab_size: int, seed: int) -> Tokenizer:
    """A tokenizer of at most `vocab_size` entries."""
    if vocab_size < 256 + len(SPECIAL_TOKENS):
        raise RecipeError(f"a byte-level vocabulary needs at least {256 + len(SPECIAL_TOKENS)} entries")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample(corpus, seed), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context_tokens: int) -> None:
    """tokenizer.json and tokenizer_config.json, as AutoTokenizer reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    # written last and atomically, since its existence marks the tokenizer as made
    part = folder / "tokenizer.tmp"
    tokenizer.save(str(part))
    part.rename(folder / "tokenizer.json")


def load_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise RecipeError(f"there is no tokenizer in {folder}: run --what tokenizer first")
    try:
        return Tokenizer.from_file(str(path))
    # the library raises plain Exception
    except Exception as error:
        raise RecipeError(f"{path} is no tokenizer: {error}") from None
