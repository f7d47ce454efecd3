"""POST /tokenize and /detokenize, GET /tokenizer_info: the tokenizer, for clients that count or cut prompts themselves."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from paceline.serve.asking import Service
from paceline.serve.conversing import prompt_of
from paceline.serve.errors import invalid
from paceline.serve.lengths import characters, check_length
from paceline.serve.settings import Settings
from paceline.serve.speculation_fields import shown
from paceline.serve.tools import planned
from paceline.serve.wire.common import REFUSALS, check_model
from paceline.serve.wire.tokens import DetokenizeRequest, TokenizeRequest, TokenizeText

_ALWAYS_LISTED = ("bos_token", "eos_token", "pad_token", "unk_token")


def router(service: Service, settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["tokens"], responses=REFUSALS)

    @routes.post("/tokenize")
    async def tokenize(fields: TokenizeRequest) -> dict[str, Any]:
        """Token ids of a text or of a conversation."""
        check_model(fields.model, service.model)
        if isinstance(fields, TokenizeText):
            check_length(len(fields.prompt), settings, "prompt")
            ids = await service.encode(fields.prompt, fields.add_special_tokens)
        else:
            messages, given = fields.template_messages, fields.template_tools
            check_length(characters(messages, given), settings, "messages")
            tools = await planned(service, given)
            begun, variables = fields.continue_final_message, fields.chat_template_kwargs
            ids = await prompt_of(service, settings, tools, messages, "messages", begun=begun, variables=variables)
        # texts may be far longer than any prompt: keep slow work off the event loop
        pieces = await asyncio.to_thread(lambda: [shown(service, token) for token in ids]) if fields.return_token_strs else None
        return {"count": len(ids), "max_model_len": service.context_length, "tokens": ids, "token_strs": pieces}

    @routes.post("/detokenize")
    async def detokenize(fields: DetokenizeRequest) -> dict[str, str]:
        """The text of tokens, special ones included."""
        check_model(fields.model, service.model)
        if len(fields.tokens) > settings.max_prompt_chars:
            raise invalid(f"'tokens' may hold at most {settings.max_prompt_chars} tokens", "tokens")
        if (largest := max(fields.tokens, default=0)) >= service.vocab_size:
            raise invalid(f"'tokens' holds token {largest}; the model has {service.vocab_size}", "tokens")
        return {"prompt": await asyncio.to_thread(service.decode, fields.tokens, False)}

    @routes.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        """Special tokens and the chat template, as tokenizer_config.json names them; null for what the model has not."""
        absent = dict.fromkeys(_ALWAYS_LISTED)
        return {
            **absent,
            **service.special_tokens,
            "chat_template": service.chat_template,
            "model_max_length": service.context_length,
            "vocab_size": service.vocab_size,
        }

    return routes
