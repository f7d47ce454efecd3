"""LangChain's chat model for OpenAI, by LangChain's own standard tests.

A model of 14M parameters cannot be asked to choose a tool or to fill it in with sense: where a test judges the model and not the
server, it says so here.
"""

from __future__ import annotations

import os
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests


class _OverPaceline:
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": "paceline-14m",
            "base_url": os.environ["PACELINE_URL"] + "/v1",
            "api_key": os.environ["PACELINE_KEY"],
            "temperature": 0,
            "max_tokens": 120,
            "stream_usage": True,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestUnit(_OverPaceline, ChatModelUnitTests):
    pass


class TestIntegration(_OverPaceline, ChatModelIntegrationTests):
    pass
