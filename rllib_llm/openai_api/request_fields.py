"""Reading of a request's JSON body: errors, and checks of single fields."""

from __future__ import annotations

import json
import math
from typing import Any

from rllib_llm.errors import RLlibLLMError


class RequestError(RLlibLLMError, ValueError):
    """A request that the endpoint refuses.

    Args:
        message: The value, the rule and the remedy.
        status: HTTP status.
        code: Short name of the error.
        param: The field at fault.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        code: str = "invalid_request",
        param: str | None = None,
    ) -> None:
        super().__init__(message, status, code, param)
        self.message, self.status, self.code = message, status, code
        self.param = param

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """Return the JSON body of the answer, in the form of OpenAI's API."""
        return {
            "error": {
                "message": self.message,
                "type": "invalid_request_error"
                if self.status < 500
                else "server_error",
                "param": self.param,
                "code": self.code,
            }
        }


MOST_BODY_BYTES = 8 * 2**20
BODY_TIMEOUT_S = 60.0
_REMEDIES = {
    404: "There is nothing at this path. Use /chat/completions, /completions or "
    "/models below base_url.",
    405: "This path does not accept the method. Completions are POST, models GET.",
    413: f"The body is longer than {MOST_BODY_BYTES} bytes. Send a shorter one.",
}


def http_error(status: int, reason: str) -> RequestError:
    """Return the error of a request that no handler has accepted."""
    code = reason.lower().replace(" ", "_")
    return RequestError(_REMEDIES.get(status, reason), status=status, code=code)


def late_body() -> RequestError:
    """Return the error of a body that does not arrive in time."""
    return RequestError(
        f"The body did not arrive within {BODY_TIMEOUT_S:g} s. Send it again.",
        status=408,
        code="timeout",
    )


def parse_json(body: bytes) -> Any:
    """Return a parsed body.

    Raises:
        RequestError: If it is not JSON.
    """
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"The body is not JSON: {str(error)[:120]}. Send a JSON object.",
            code="invalid_json",
        ) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


_SHOWN = 80  # characters of a wrong value in a message


def wrong(name: str, value: Any, rule: str) -> RequestError:
    """Return the error of a field."""
    text = repr(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return RequestError(f"{name}={shown} {rule}", param=name)


class Fields:
    """Fields of a body, each of which must be read.

    Null stands for a field that is left out.

    Args:
        body: The parsed body.

    Raises:
        RequestError: If it is not a JSON object.
    """

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise RequestError(
                f"The body is {type(body).__name__}; it must be a JSON object, e.g. "
                '{"model": ..., "messages": [...]}.'
            )
        self._left = {k: v for k, v in body.items() if v is not None}

    def take(self, name: str) -> Any:
        """Return a field and mark it as read; None without it."""
        return self._left.pop(name, None)

    def text(self, name: str, *, required: bool = False) -> str | None:
        """Return a text."""
        value = self.take(name)
        if value is None and not required:
            return None
        if not isinstance(value, str) or not value:
            raise wrong(name, value, "must be a text that is not empty.")
        return value

    def integer(self, name: str, least: int, most: int) -> int | None:
        """Return an integer in [least, most]."""
        value = self.take(name)
        if value is None:
            return None
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if not is_int or not least <= value <= most:
            raise wrong(name, value, f"must be an integer in [{least}, {most}].")
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number in [least, most]."""
        value = self.take(name)
        if value is None:
            return None
        if not _is_number(value) or not least <= value <= most:
            raise wrong(name, value, f"must be a number in [{least:g}, {most:g}].")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return a bool, False by default."""
        value = self.take(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise wrong(name, value, "must be true or false.")
        return value

    def must_equal(self, name: str, only: float, why: str) -> None:
        """Refuse any other number than one."""
        value = self.take(name)
        if value is None:
            return
        if not _is_number(value):
            raise wrong(name, value, "must be a number.")
        if not math.isclose(value, only, abs_tol=1e-9):
            raise wrong(
                name, value, f"is refused: {why} Leave it out or send {only:g}."
            )

    def must_be_one_of(self, name: str, allowed: tuple[Any, ...], why: str) -> None:
        """Refuse a field unless it has one of the values without an effect."""
        value = self.take(name)
        if value is not None and value not in allowed:
            raise wrong(name, value, f"is refused: {why} Leave it out.")

    def refuse_rest(self, page: str) -> None:
        """Refuse fields that nothing has read.

        Args:
            page: Page of the documentation that lists the fields.

        Raises:
            RequestError: With their names.
        """
        if self._left:
            names = ", ".join(sorted(str(name)[:40] for name in self._left)[:8])
            raise RequestError(
                f"The endpoint does not support {names}, and ignores no field. Leave "
                f"it out; {page} lists the fields.",
                param=str(next(iter(self._left)))[:40],
            )


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
