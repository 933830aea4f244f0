"""What can go wrong."""

from typing import Optional


class MurmurError(Exception):
    """Something did not work. ``hint`` says what to do about it, where that is known."""

    def __init__(self, message: str, hint: Optional[str] = None) -> None:
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")
        self.message = message
        self.hint = hint


class NotRunning(MurmurError):
    """Nobody answers at an address."""
