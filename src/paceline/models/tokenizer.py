"""Tokenizer: text to token ids and back, as the checkpoint's files define it; code in a checkpoint is never run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence as Many
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as Backend

from paceline.models.base import ModelError
from paceline.models.checkpoint import read_if_there
from paceline.models.ends import tokenizer_ends
from paceline.models.quiet import quiet, sentence

_DESCRIPTION, _SENTENCEPIECE = "tokenizer.json", "tokenizer.model"
_PLAIN_CLASSES = {"PreTrainedTokenizerFast", "TokenizersBackend"}
"""Tokenizer classes that tokenizer.json describes completely: read without transformers' registry, which is slow to import."""
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_HARMLESS = {*_NAMED, "tokenizer_class", "model_max_length", "clean_up_tokenization_spaces", "chat_template"}
"""Settings that do not change encoding and decoding, as long as tokenizer.json lists the named tokens as special."""


_NONE: Mapping[str, Any] = MappingProxyType({})
_LATEST: dict[bytes, Backend] = {}
"""Digest of a tokenizer.json -> the tokenizer read from it; only the latest is kept."""


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
        """The underlying tokenizer of the transformers library; only `models/` may use it."""
        with quiet():
            return _read(self.path)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; the model's logits may have more, padded, columns."""
        return len(self.library) if self._bare is None else self._bare.get_vocab_size()

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token -> id, added ones included."""
        return self.library.get_vocab() if self._bare is None else self._bare.get_vocab()

    @property
    def has_chat_template(self) -> bool:
        return bool(self.library.chat_template)

    def check_chat_template(self) -> None:
        """Raise ModelError if the model has no chat template."""
        if not self.has_chat_template:
            raise ModelError(f"the model in '{self.path}' has no chat template")

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids; `add_special` adds the special tokens that this model expects around a text, such as a BOS, once.

        The GIL is released meanwhile. Raises ModelError for a text that UTF-8 cannot encode (a lone surrogate), or that this
        tokenizer cannot encode.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ModelError("the text is not valid Unicode: it holds half of a surrogate pair or a stray byte") from error
        try:
            if self._bare is not None:
                # the library holds the GIL for a single text, and releases it for a batch
                return self._bare.encode_batch([text], add_special_tokens=add_special)[0].ids
            return self.library.encode(text, add_special_tokens=add_special, verbose=False)
        # the tokenizers library raises plain Exception, and where it panics a BaseException of its own
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ModelError(f"the tokenizer in '{self.path}' cannot encode this text: {sentence(error)}") from error

    def decode(self, ids: Many[int], skip_special_tokens: bool = True) -> str:
        """The text of these tokens; bytes that do not form a whole character become U+FFFD."""
        return self._decode(list(ids), skip_special_tokens)

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the model's chat template; if it has several, the one named "default"."""
        held = self.library.chat_template
        return held.get("default") if isinstance(held, dict) else held

    @property
    def special_tokens(self) -> dict[str, str]:
        """Special tokens by their names in tokenizer_config.json, e.g. {"eos_token": "</s>"}."""
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
        continued. variables: further template variables, such as `enable_thinking`. The model's own template is rendered in
        transformers' sandbox. Raises ModelError if there is no template or it fails, and if a variable has a reserved name.
        """
        self.check_chat_template()
        # `messages` is the conversation's name inside the template
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
        # a template is a program, and can raise anything
        except Exception as error:
            raise ModelError(f"the chat template in '{self.path}' cannot be rendered: {sentence(error)}") from error
        return self.encode(str(text), add_special=False)

    @property
    def ends(self) -> frozenset[int]:
        """The tokenizer's EOS, which ends the model's turn (a model may have further EOS tokens); empty if it has none."""
        return tokenizer_ends(self.path, read_if_there)

    @property
    def fingerprint(self) -> str:
        """A digest of the vocabulary: equal if every token has the same id, as in `same_vocabulary`."""
        return sha256(json.dumps(sorted(self.vocabulary.items())).encode()).hexdigest()

    def same_vocabulary(self, other: Tokenizer) -> bool:
        """Whether every token has the same id in both, as a draft model needs to draft for a target directly."""
        if self._bare is not None and self._bare is other._bare:
            return True
        return self.vocabulary == other.vocabulary


def _bare(path: Path, settings: Mapping[str, Any]) -> Backend | None:
    """The tokenizer read by the tokenizers library alone, since importing transformers takes a third of a second.

    None if any setting or other file may change how it encodes or decodes, or if it cannot be read.
    """
    if str(settings.get("tokenizer_class")) not in _PLAIN_CLASSES or not settings.keys() <= _HARMLESS:
        return None
    if any((path / name).exists() for name in ("added_tokens.json", "special_tokens_map.json")):
        return None
    try:
        backend = _backend(path / _DESCRIPTION)
    # the library raises plain Exception; `_read` reports what is wrong
    except Exception:
        return None
    special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    named = all(settings.get(name) in (None, *special) for name in _NAMED)
    return backend if named and backend.padding is None and backend.truncation is None else None


def _backend(file: Path) -> Backend:
    """The tokenizer that a file describes; cached for equal bytes, since a draft model mostly has its target's tokenizer."""
    data = file.read_bytes()
    digest = sha256(data).digest()
    if digest not in _LATEST:
        backend = Backend.from_buffer(data)
        _LATEST.clear()
        _LATEST[digest] = backend
    return _LATEST[digest]


def _read(path: Path) -> Any:
    settings = read_if_there(path / "tokenizer_config.json")
    names = (_DESCRIPTION, _SENTENCEPIECE, "vocab.json", "vocab.txt", "tokenizer_config.json")
    if not any((path / name).is_file() for name in names):
        instead = "; its tekken.json is not read" if (path / "tekken.json").is_file() else ""
        raise ModelError(f"'{path}' has no tokenizer: tokenizer.json is missing{instead}")
    try:
        if (path / _DESCRIPTION).is_file() and "auto_map" not in settings:
            # whatever class is named: transformers' classes for Llama, GPT-2 or Qwen2 split texts by built-in rules instead of
            # the file's
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    # the tokenizers library raises plain Exception for a damaged file
    except Exception as error:
        if (path / _SENTENCEPIECE).is_file() and not (path / _DESCRIPTION).is_file() and find_spec("sentencepiece") is None:
            # transformers then takes the file for another format, and asks for a package that does not help
            needed = f"reading its {_SENTENCEPIECE} needs the packages sentencepiece and protobuf"
            raise ModelError(f"'{path}' has no {_DESCRIPTION}, and {needed}") from error
        said = f"the tokenizer in '{path}' cannot be read: {sentence(error)}"
        if _DESCRIPTION not in said and not (path / _DESCRIPTION).exists():
            # transformers looks for older files too, so its message does not name the file that is usually missing
            said += f"; {_DESCRIPTION} is missing"
        raise ModelError(said) from error


def _decoder(tokenizer: Any) -> Callable[[list[int], bool], str]:
    """Its decode function, without the argument checks around it, which take four times as long as decoding a token."""
    from transformers import PreTrainedTokenizerFast

    kind, stock = type(tokenizer), PreTrainedTokenizerFast
    if isinstance(tokenizer, stock) and kind.decode is stock.decode and kind._decode is stock._decode:
        return tokenizer.backend_tokenizer.decode
    return lambda ids, skip: str(tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))
