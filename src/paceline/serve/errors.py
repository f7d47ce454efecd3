"""Errors a client can be told: a status, one sentence, and the names that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class APIError(Exception):
    """Ends a request with an HTTP status. param: the field at fault. code: a name for programs. retry_after_s: with 429, 503."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after_s = status, message, param, code, retry_after_s

    @property
    def kind(self) -> str:
        """The error type, as OpenAI and Anthropic name it."""
        if self.status in _TYPES:
            return _TYPES[self.status]
        return "invalid_request_error" if self.status < 500 else "api_error"

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's form."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class TooLong(APIError):
    """400: a prompt is longer than it may be. Clients that then shorten it know that by the words of the API they speak:
    `message` has those of OpenAI, `anthropics` those of Anthropic. length, most: in units such as tokens."""

    def __init__(self, message: str, param: str, length: int, most: int, unit: str) -> None:
        super().__init__(400, message, param=param, code="context_length_exceeded")
        self.anthropics = f"prompt is too long: {length} {unit} > {most} maximum"


def invalid(message: str, param: str | None = None, code: str | None = None) -> APIError:
    """400: what was asked for cannot be had; the message is one sentence that names it."""
    return APIError(400, message, param=param, code=code)
