"""Stops: where a verdict is cut. EOS, stop ids, stop strings, grammars and lengths, checked token by token in order."""

from __future__ import annotations

from paceline.engine.text import TextStream
from paceline.models.tokenizer import Tokenizer
from paceline.sequence import Sequence
from paceline.step import Verdict


class StopChecker:
    """Holds the growing text of every sequence, since a stop string may begin in one step and end within the next."""

    def __init__(self, tokenizer: Tokenizer, longest: int) -> None:
        self._tokenizer, self._longest = tokenizer, longest
        self._streams: dict[int, TextStream] = {}

    def begin(self, sequence: Sequence) -> None:
        """Open the text of a sequence, or rebuild it from its committed tokens."""
        self._streams[sequence.key] = self._begun(sequence, not sequence.streamed)

    def _begun(self, sequence: Sequence, waits: bool) -> TextStream:
        """The text of the committed tokens. waits: as in `TextStream`."""
        params = sequence.params
        stream = TextStream(
            self._tokenizer,
            params.stop,
            sequence.prompt,
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=params.min_tokens,
            waits=waits,
        )
        for token in sequence.generated:
            stream.append(token)
        return stream

    def cut_short(self, sequence: Sequence) -> str:
        """The text so far of a sequence that is aborted, streamed or not."""
        return self._begun(sequence, waits=False).safe

    def stream(self, sequence: Sequence) -> TextStream:
        return self._streams[sequence.key]

    def end(self, sequence: Sequence) -> None:
        self._streams.pop(sequence.key, None)

    def cut(self, sequence: Sequence, verdict: Verdict) -> Verdict:
        """The verdict up to and including the token that ends the sequence; the whole of it where none does, as far as tokens
        were chosen under masks that the grammar computed."""
        if sequence.constraint is None and not sequence.params.stop:
            return self._cut_by_tokens(sequence, verdict)
        if sequence.constraint is not None and (checked := sequence.constraint.checked(verdict.tokens)) < len(verdict.tokens):
            verdict = verdict.cut(checked, None)
        stream = self._streams[sequence.key]
        for count, token in enumerate(verdict.tokens, 1):
            if token in sequence.stop_ids:
                stream.finish()
                if token in sequence.params.stop_token_ids:
                    sequence.stop = token
                return verdict.cut(count, "stop")
            stream.append(token)
            total = len(sequence.tokens) + count
            if stream.stopped:
                sequence.stop = stream.stop
                return verdict.cut(count, "stop")
            over = sequence.constraint.over(verdict.tokens[:count]) if sequence.constraint is not None else None
            if over is None and (total - len(sequence.prompt) >= sequence.params.max_tokens or total >= self._longest):
                over = "length"
            if over is not None:
                stream.finish()
                sequence.stop = stream.stop
                return verdict.cut(count, "stop" if stream.stopped else over)
        return verdict

    def _cut_by_tokens(self, sequence: Sequence, verdict: Verdict) -> Verdict:
        """`cut` where neither stop strings nor a grammar end a sequence: what a step emitted is decoded at once."""
        stream, tokens = self._streams[sequence.key], verdict.tokens
        room = max(min(sequence.params.max_tokens - sequence.generated_tokens, self._longest - len(sequence.tokens)), 1)
        for count, token in enumerate(tokens[:room], 1):
            if token in sequence.stop_ids:
                stream.extend(tokens[: count - 1])
                stream.finish()
                if token in sequence.params.stop_token_ids:
                    sequence.stop = token
                return verdict.cut(count, "stop")
        stream.extend(tokens[:room])
        if len(tokens) < room:
            return verdict
        stream.finish()
        return verdict.cut(room, "length")
