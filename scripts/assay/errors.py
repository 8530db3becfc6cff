"""The errors a user may see, each with the exit code it ends the program with."""

from __future__ import annotations

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INCOMPLETE = 3
EXIT_INTERNAL = 4


class AssayError(Exception):
    """Base of every error that is reported as one message, without a traceback."""

    exit_code = EXIT_INTERNAL


class CheckFailed(AssayError):
    """A check ran and its answer is no."""

    exit_code = EXIT_CHECK_FAILED


class BadInput(AssayError):
    """Something the user wrote or named is wrong; nothing was started.

    ``where`` is the file (or option), ``key`` the path of the bad key inside it, ``hint`` what would be
    right.
    """

    exit_code = EXIT_BAD_INPUT

    def __init__(
        self, message: str, *, where: object = None, key: str | None = None, hint: str | None = None
    ):
        self.message, self.where, self.key, self.hint = message, where, key, hint
        place = ": ".join(str(part) for part in (where, key) if part)
        text = f"{place}: {message}" if place else message
        super().__init__(f"{text} ({hint})" if hint else text)


class Incomplete(AssayError):
    """What is needed to answer is not there."""

    exit_code = EXIT_INCOMPLETE
