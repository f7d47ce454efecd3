"""From a conversation to the one choice that answers it. Whatever can be refused is, before the engine hears of any of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Many
from typing import Any

from paceline.serve.asking import Ask, Service
from paceline.serve.sampling_fields import answer_tokens, asks, check_length, reference_of, sampling_params
from paceline.serve.settings import Settings
from paceline.serve.tools import ToolPlan
from paceline.serve.wire.generation import Extensions


async def prompt_of(
    service: Service, settings: Settings, plan: ToolPlan, messages: Many[Mapping[str, Any]], param: str, *, begun: bool = False
) -> list[int]:
    """Token ids of a conversation with its tools. messages: as chat templates read them. begun: the last one is continued.

    Raises APIError (400). param: the field that holds the messages.
    """
    told = plan.conversation(messages)
    check_length(sum(len(json.dumps(one, ensure_ascii=False)) for one in (*told, *plan.shown)), settings, param)
    return await service.chat(told, plan.shown, answer_begun=begun)


async def ask_of(
    service: Service,
    settings: Settings,
    fields: Extensions,
    plan: ToolPlan,
    prompt: list[int],
    values: Mapping[str, Any],
    longest: int | None,
    param: str,
) -> Ask:
    """The choice that answers a prompt. values: of sampling, as `sampling_params` takes them. longest: tokens asked for.

    Raises APIError (400).
    """
    bound: dict[str, Any] = {"grammar": plan.grammar, "max_tokens": 1}
    if plan.keeps_special:
        bound["skip_special"] = False
    params = sampling_params(service, settings, {**values, **bound})
    default = settings.default_max_tokens or service.defaults.get("max_tokens")
    most = answer_tokens(service, len(prompt), longest, default, param)
    reference = await reference_of(service, fields)
    (ask,) = asks(prompt, params.model_copy(update={"max_tokens": most}), fields, reference, service)
    return ask
