"""Draft models with another tokenizer than the tiny target's: a byte-level one with nearly its tokens, a SentencePiece one."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from paceline.models.load import load_model
from paceline.models.pieces import Pieces
from paceline.models.tokenizer import Tokenizer as PacelineTokenizer
from tiny import perturb, save_tiny, tiny_model, tiny_tokenizer

KINDS = ["shuffled", "pieced"]


def shuffled_tokenizer() -> Tokenizer:
    """Byte-level like the target's, with the bytes in another order, other merges, and special tokens renamed or missing."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    merges = [("t", "h"), ("o", "n"), ("a", "n"), ("an", "d")]
    pieces = ["<pad>", *alphabet, *("".join(pair) for pair in merges), "<end>", "<s>"]
    tokenizer = Tokenizer(models.BPE({piece: token for token, piece in enumerate(pieces)}, merges))
    tokenizer.add_special_tokens(["<pad>", "<end>", "<s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex(r"\s?\S+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return tokenizer


def pieced_tokenizer() -> Tokenizer:
    """SentencePiece-like: spaces as U+2581, one before every text, byte fallback for characters without a piece, <s> in front."""
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz.,", "\u00e9"]
    merges = [("\u2581", "t"), ("h", "e"), ("\u2581t", "he"), ("i", "n"), ("\u2581", "a")]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *map("".join, merges)]
    model = models.BPE({piece: token for token, piece in enumerate(pieces)}, merges, byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def spaced_tokenizer() -> Tokenizer:
    """`pieced_tokenizer` with added tokens for runs of spaces, as Gemma has them, and </s> behind every text."""
    tokenizer = pieced_tokenizer()
    tokenizer.add_tokens([AddedToken("\u2581" * size, normalized=False) for size in (2, 3, 4)])
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


def save_all(folder: Path) -> Path:
    """Saves the tiny target and both draft models, each in a folder of its name."""
    save_tiny(folder / "target", 3)
    save_shuffled(folder / "shuffled", 3)
    save_pieced(folder / "pieced", 4)
    return folder


@cache
def pieces(place: Path) -> Pieces:
    return Pieces(PacelineTokenizer(place), load_model(place).vocab_size)


def save(folder: Path, tokenizer: Tokenizer, model: Any, **names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model.save_pretrained(folder)
    return folder


def save_shuffled(folder: Path, seed: int, disturbed: float = 0.0, padding: int = 5) -> Path:
    """The tiny model of that seed, its embedding rows reordered for this tokenizer; rows of new tokens stay random.

    padding: rows of the vocabulary that are no token.
    """
    theirs, ours = tiny_tokenizer(), shuffled_tokenizer()
    size, end = ours.get_vocab_size(), ours.token_to_id("<end>")
    source = tiny_model("llama", seed, vocab_size=theirs.get_vocab_size())
    model = tiny_model("llama", seed, vocab_size=size + padding, eos_token_id=end, bos_token_id=ours.token_to_id("<s>"))
    ends = {"</s>": "<end>"}
    with torch.no_grad():
        known = {token: ours.token_to_id(ends.get(piece, piece)) for piece, token in theirs.get_vocab().items()}
        known = {token: other for token, other in known.items() if other is not None}
        rows = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
        for parameter, other in zip(model.parameters(), source.parameters(), strict=True):
            if not any(parameter is row for row in rows):
                parameter.copy_(other)
        for row, other in zip(rows, (source.get_input_embeddings().weight, source.get_output_embeddings().weight), strict=True):
            row[list(known.values())] = other[list(known)]
    if disturbed:
        perturb(model, seed + 1, disturbed)
    return save(folder, ours, model, eos_token="<end>", bos_token="<s>")


def save_pieced(folder: Path, seed: int) -> Path:
    tokenizer = pieced_tokenizer()
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return save(folder, tokenizer, tiny_model("llama", seed, vocab_size=tokenizer.get_vocab_size()), **names)
