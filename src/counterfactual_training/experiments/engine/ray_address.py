"""Does a Ray cluster answer? Ray itself takes minutes to say that none does."""

from __future__ import annotations

import importlib.util
import os
import re
import socket

from counterfactual_training.errors import InputError, MissingExtraError

_SECONDS = 5.0
# Ray speaks gRPC, which is HTTP/2: a client greets with this, a server answers with a frame of settings (type 4).
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS = 4

HOW_TO_START = (
    "Start one with `ray start --head --port=6379` on the first machine and `ray start --address=HOST:6379` on each "
    "of the others, this one included; from outside use ray://HOST:10001. Without an address Ray runs on this machine."
)


def check_answers(address: str) -> None:
    """Raise unless something like Ray listens at ``host:port`` or ``ray://host:port``; ``auto`` is Ray's to find."""
    if address == "auto":
        return
    match = re.fullmatch(r"(?P<client>ray://)?(?P<host>[^/:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})", address)
    if match is None or int(match["port"]) > 65535:
        raise InputError(f"{address!r} is no address of a Ray cluster: expected auto, host:port or ray://host:port.")
    if match["client"]:
        _need_client()
    problem = _problem(match["host"].strip("[]"), int(match["port"]))
    if problem:
        raise InputError(f"No Ray cluster answers at {address!r} ({problem}). {HOW_TO_START}")


def _problem(host: str, port: int) -> str | None:
    """Why nothing useful is there, or None."""
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                return None  # it would not answer a greeting in the clear
            connection.sendall(_GREETING)
            reply = connection.recv(9)
    except TimeoutError:
        return f"no answer within {_SECONDS:.0f} seconds"
    except OSError as error:
        return error.strerror or str(error)
    return None if len(reply) >= 4 and reply[3] == _SETTINGS else "something else listens there"


def _need_client() -> None:
    if importlib.util.find_spec("grpc") is None:
        raise MissingExtraError(
            'An address that begins with ray:// needs Ray\'s client: pip install "counterfactual-training[ray]".'
        )
