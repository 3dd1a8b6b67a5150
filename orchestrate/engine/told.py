"""Turns the errors of the Docker SDK and of what carries it into ours, with the engine's place. Hides none."""

from __future__ import annotations

from typing import Literal

from orchestrate.archive import TarError
from orchestrate.errors import CannotTell, Refused

START_ENGINE = "start it (`sudo systemctl start docker`), or see `orchestrate explain docker.daemon`"


class told:  # noqa: N801 - it reads as a word in a with statement
    """Turns the SDK's and the transport's errors into ours, with the engine's place."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> Literal[False]:
        if error is None or isinstance(error, (CannotTell, Refused)) or not isinstance(error, Exception):
            return False
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        if isinstance(error, APIError) and error.response is not None:  # it answered, if only to say no
            said = str(error.explanation or error).strip()
            raise Refused(
                f"the Docker Engine refused: {said}",
                where=self.where,
                next_step="put right what it names, and try again",
            ) from error
        if isinstance(error, (DockerException, RequestException, HTTPError, OSError, EOFError, TarError)) or (
            type(error).__module__.startswith("paramiko")
        ):
            if "BadStatusLine" in repr(error):
                raise CannotTell(
                    "the user's shell prints before the engine can answer",
                    where=self.where,
                    next_step="keep the shell's start files (.bashrc) silent when no terminal is there",
                ) from error
            raise CannotTell(
                f"the Docker Engine does not answer: {error}", where=self.where, next_step=START_ENGINE
            ) from error
        return False
