"""Errors that are reported to clients: an HTTP status, one sentence, and OpenAI's names for them."""

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
        """In OpenAI's format."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class TooLong(APIError):
    """400: a prompt is too long. Clients that then shorten it recognize the error by the wording of their API: `message` has
    OpenAI's, `anthropics` Anthropic's. length, most: in units such as tokens."""

    def __init__(self, message: str, param: str, length: int, most: int, unit: str) -> None:
        super().__init__(400, message, param=param, code="context_length_exceeded")
        self.anthropics = f"prompt is too long: {length} {unit} > {most} maximum"


def invalid(message: str, param: str | None = None, code: str | None = None) -> APIError:
    """400: the request is invalid or asks for something unsupported; the message is one sentence that says what."""
    return APIError(400, message, param=param, code=code)
