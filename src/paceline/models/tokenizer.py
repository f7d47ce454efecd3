"""Tokenizer: text to token ids and back, as the checkpoint's own files say, without ever running its code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence as Many
from functools import cached_property
from hashlib import sha256
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as Backend

from paceline.models.base import ModelError
from paceline.models.checkpoint import read_if_there
from paceline.models.ends import tokenizer_ends
from paceline.models.quiet import quiet, sentence

_DESCRIPTION = "tokenizer.json"
_PLAIN_CLASSES = {"PreTrainedTokenizerFast", "TokenizersBackend"}
"""Wholly described by tokenizer.json: read without the registry of tokenizers, which is slow to import."""
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_HARMLESS = {*_NAMED, "tokenizer_class", "model_max_length", "clean_up_tokenization_spaces", "chat_template"}
"""Settings beside which tokenizer.json alone says what becomes of a text: as long as it knows the named tokens."""


_NONE: Mapping[str, Any] = MappingProxyType({})
_LATEST: dict[bytes, Backend] = {}
"""Digest of a tokenizer.json -> what was read of it; of one file, the last."""


class Tokenizer:
    """path: a checkpoint folder. Raises ModelError, in one sentence, where its tokenizer is missing or damaged."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        settings = read_if_there(self.path / "tokenizer_config.json")
        self._bare = _bare(self.path, settings)
        if self._bare is None:
            self._decode = _decoder(self.library)
        else:
            self._decode = self._bare.decode

    @cached_property
    def library(self) -> Any:
        """The tokenizer of the transformers library behind it, for `models/` alone."""
        with quiet():
            return _read(self.path)

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included; the model's own vocabulary may be padded beyond it."""
        return len(self.library) if self._bare is None else self._bare.get_vocab_size()

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token -> id, added ones included."""
        return self.library.get_vocab() if self._bare is None else self._bare.get_vocab()

    @property
    def has_chat_template(self) -> bool:
        return bool(self.library.chat_template)

    def check_chat_template(self) -> None:
        """Raise ModelError where the model has no chat template."""
        if not self.has_chat_template:
            raise ModelError(f"the model in '{self.path}' has no chat template")

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids; `add_special` adds what this model expects around a text, such as a BOS, once. Other threads run meanwhile.

        Raises ModelError for a text that UTF-8 cannot write (a lone surrogate), or that this tokenizer has no tokens for.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ModelError("the text is not valid Unicode: it holds half of a surrogate pair or a stray byte") from error
        try:
            if self._bare is not None:
                # of one text the library keeps the interpreter's lock, of a batch it lets it go
                return self._bare.encode_batch([text], add_special_tokens=add_special)[0].ids
            return self.library.encode(text, add_special_tokens=add_special, verbose=False)
        # the tokenizers library raises plain Exception
        except Exception as error:
            raise ModelError(f"the tokenizer in '{self.path}' cannot encode this text: {sentence(error)}") from error

    def decode(self, ids: Many[int], skip_special_tokens: bool = True) -> str:
        """The text of some tokens; bytes that are no whole character show as U+FFFD."""
        return self._decode(list(ids), skip_special_tokens)

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the model's own template; of several the one named "default"."""
        held = self.library.chat_template
        return held.get("default") if isinstance(held, dict) else held

    @property
    def special_tokens(self) -> dict[str, str]:
        """Such as {"eos_token": "</s>"}, by the names of tokenizer_config.json."""
        return {name: str(token) for name, token in self.library.special_tokens_map.items() if isinstance(token, str)}

    def chat(
        self,
        messages: Many[Mapping[str, Any]],
        tools: Many[Mapping[str, Any]] = (),
        *,
        answer_begun: bool = False,
        variables: Mapping[str, Any] = _NONE,
    ) -> list[int]:
        """Token ids of a conversation, up to where the model answers. messages: mappings with `role` and `content`.

        tools: functions that the model may call, as JSON schemas. answer_begun: the last message is the model's own, and is
        continued. variables: what else the template reads, such as `enable_thinking`. The model's own template is rendered in
        transformers' sandbox. Raises ModelError where there is none or it fails, and where a variable has a name that means
        something else.
        """
        self.check_chat_template()
        # `messages` is what the library calls the conversation inside
        taken = {*signature(self.library.apply_chat_template).parameters, "messages"} & variables.keys()
        if taken:
            raise ModelError(f"a variable of a chat template cannot be named '{min(taken)}'")
        try:
            with quiet():
                text = self.library.apply_chat_template(
                    [dict(message) for message in messages],
                    tools=[dict(tool) for tool in tools] or None,
                    tokenize=False,
                    add_generation_prompt=not answer_begun,
                    continue_final_message=answer_begun,
                    **variables,
                )
        # a template is a program, and can fail as any can
        except Exception as error:
            raise ModelError(f"the chat template in '{self.path}' cannot be rendered: {sentence(error)}") from error
        return self.encode(str(text), add_special=False)

    @property
    def ends(self) -> frozenset[int]:
        """Its own EOS, of all the tokens that may end a text that which ends what the model says; empty where it has none."""
        return tokenizer_ends(self.path, read_if_there)

    @property
    def fingerprint(self) -> str:
        """A digest of the vocabulary: equal where every token has the same id, as in `same_vocabulary`."""
        return sha256(json.dumps(sorted(self.vocabulary.items())).encode()).hexdigest()

    def same_vocabulary(self, other: Tokenizer) -> bool:
        """True where every token has the same id in both: what a draft model needs to draft for a target."""
        if self._bare is not None and self._bare is other._bare:
            return True
        return self.vocabulary == other.vocabulary


def _bare(path: Path, settings: Mapping[str, Any]) -> Backend | None:
    """The tokenizer of the tokenizers library, where no more is needed to encode and decode: transformers takes a third of a
    second to import. None where anything else beside it may have a say, or where it cannot be read.
    """
    if str(settings.get("tokenizer_class")) not in _PLAIN_CLASSES or not settings.keys() <= _HARMLESS:
        return None
    if any((path / name).exists() for name in ("added_tokens.json", "special_tokens_map.json")):
        return None
    try:
        backend = _backend(path / _DESCRIPTION)
    # the library raises plain Exception; transformers' reader says what is wrong
    except Exception:
        return None
    special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    named = all(settings.get(name) in (None, *special) for name in _NAMED)
    return backend if named and backend.padding is None and backend.truncation is None else None


def _backend(file: Path) -> Backend:
    """The tokenizer that a file describes; the last one again for the same bytes, as those of a draft model mostly are."""
    data = file.read_bytes()
    digest = sha256(data).digest()
    if digest not in _LATEST:
        backend = Backend.from_buffer(data)
        _LATEST.clear()
        _LATEST[digest] = backend
    return _LATEST[digest]


def _read(path: Path) -> Any:
    settings = read_if_there(path / "tokenizer_config.json")
    names = (_DESCRIPTION, "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")
    if not any((path / name).is_file() for name in names):
        raise ModelError(f"'{path}' has no tokenizer: tokenizer.json is missing")
    try:
        if (path / _DESCRIPTION).is_file() and "auto_map" not in settings:
            # whatever class is named: transformers' own for Llama, GPT-2 or Qwen2 splits texts by rules that it brings, and not
            # by those of the file
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    # the tokenizers library raises plain Exception for a damaged file
    except Exception as error:
        said = f"the tokenizer in '{path}' cannot be read: {sentence(error)}"
        if _DESCRIPTION not in said and not (path / _DESCRIPTION).exists():
            # transformers looks for older files, and what it says of them does not name what most folders lack
            said += f"; {_DESCRIPTION} is missing"
        raise ModelError(said) from error


def _decoder(tokenizer: Any) -> Callable[[list[int], bool], str]:
    """How it decodes, without the checks of its arguments around it: they take four times as long, for every new token."""
    from transformers import PreTrainedTokenizerFast

    kind, stock = type(tokenizer), PreTrainedTokenizerFast
    if isinstance(tokenizer, stock) and kind.decode is stock.decode and kind._decode is stock._decode:
        return tokenizer.backend_tokenizer.decode
    return lambda ids, skip: str(tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))
