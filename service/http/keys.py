"""API keys: from variables or files, each with a name for the log and limits of its own."""

import asyncio
import hmac
import logging
import re
import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from service.settings import KEY, Settings, SettingsError

Headers = Iterable[tuple[bytes, bytes]]

MAX_KEYS = 1000
MAX_FILE_BYTES = 2**20
NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")
LIMIT = re.compile(r"(rate|concurrency)=([0-9]+(?:\.[0-9]+)?)")
LINE = "NAME:KEY, or NAME:KEY rate=REQUESTS_PER_SECOND concurrency=REQUESTS for limits of its own"
ADMIN = "admin"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Key:
    """A key that opens the service.

    Attributes:
        name: for the log; the key itself is never shown.
        secret: what a client sends.
        place: among all keys, from 0; where its use is counted.
        rate: requests per second that it may send; 0 for any number.
        concurrency: of its requests that may be under way at once; 0 for any number.
    """

    name: str
    secret: bytes
    place: int
    rate: float = 0.0
    concurrency: int = 0


class Keys:
    """The keys of a service. Those of files can be read again while it runs.

    Attributes:
        are_needed: whether each request must have one. Whether keys are needed never changes while a service
            runs.
        admin: the key for administration; None if there is none.
    """

    def __init__(self, settings: Settings) -> None:
        """Read the keys.

        Raises:
            SettingsError: a file cannot be read, or what it has is no key; or there are limits and no keys.
        """
        self._settings = settings
        self.are_needed = bool(settings.api_keys or settings.api_keys_file)
        if not self.are_needed and (settings.key_rate or settings.key_concurrency):
            raise SettingsError(
                "CAPSNET_KEY_RATE and CAPSNET_KEY_CONCURRENCY limit the use of each key, and there are none: "
                "set CAPSNET_API_KEYS or CAPSNET_API_KEYS_FILE"
            )
        self.read()

    @property
    def come_from_files(self) -> bool:
        """Whether there is anything to read again."""
        return bool(self._settings.key_files)

    def read(self) -> int:
        """Take the keys of the files anew; returns how many keys open the service. If it fails, none changes.

        Raises:
            SettingsError: as in the beginning.
        """
        settings = self._settings
        clients = [*_of_variable(settings), *_of_file(settings)]
        admin = _admin(settings)
        if admin and any(key.secret == admin for key in clients):
            raise SettingsError("the admin key is also a key of clients: use another one")
        if len(clients) > MAX_KEYS:
            raise SettingsError(f"there are {len(clients)} keys; at most {MAX_KEYS} can be told apart")
        placed = [replace(key, place=place) for place, key in enumerate(clients)]
        self.admin = Key(ADMIN, admin, MAX_KEYS) if admin else None
        self._all = (*placed, *([self.admin] if self.admin else []))
        return len(self._all)

    def find(self, headers: Headers) -> Key | None:
        """The key that headers hold; the time it takes does not tell how close a wrong one was."""
        return _found(self._all, headers)

    def has_admin(self, headers: Headers) -> bool:
        """Whether the admin key is there."""
        return self.admin is not None and _found((self.admin,), headers) is not None


def read_again_at_hangup(keys: Keys) -> None:
    """From now on SIGHUP has the files read again, if keys come from files; for a running event loop."""

    def read() -> None:
        try:
            log.info("read %d keys again", keys.read())
        except SettingsError as error:
            log.warning("the keys stay as they are: %s", error)

    if keys.come_from_files and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, read)


def sent(headers: Headers) -> list[bytes]:
    """What a client sent as keys."""
    keys = [value for name, value in headers if name == b"x-api-key"]
    given = (value for name, value in headers if name == b"authorization")
    return keys + [value[7:].strip() for value in given if value[:7].lower() == b"bearer "]


def _found(known: Iterable[Key], headers: Headers) -> Key | None:
    found = None
    for value in sent(headers):
        for key in known:
            if hmac.compare_digest(value, key.secret):
                found = key
    return found


def _of_variable(settings: Settings) -> Iterable[Key]:
    if settings.api_keys:
        secrets = settings.api_keys.get_secret_value().split(",")
        for number, secret in enumerate(secrets, 1):
            found = secret.strip().encode()
            yield Key(f"key-{number}", found, 0, settings.key_rate, settings.key_concurrency)


def _of_file(settings: Settings) -> list[Key]:
    """One key a line; blank lines and those that begin with # are left out."""
    if settings.api_keys_file is None:
        return []
    found: dict[str, Key] = {}
    for number, line in enumerate(_text(settings.api_keys_file).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key = _key(line, settings)
        if key is None:
            raise SettingsError(f"{settings.api_keys_file}, line {number}: expected {LINE}")
        if key.name in found or any(key.secret == other.secret for other in found.values()):
            raise SettingsError(f"{settings.api_keys_file}, line {number}: {key.name} or its key comes twice")
        found[key.name] = key
    if not found:
        raise SettingsError(f"{settings.api_keys_file} has no keys, so nobody could use the service")
    return [*found.values()]


def _key(line: str, settings: Settings) -> Key | None:
    """What a line says; None if it says nothing that can be understood."""
    entry, *rest = line.split()
    name, _, secret = entry.partition(":")
    limits = [LIMIT.fullmatch(word) for word in rest]
    if not NAME.fullmatch(name) or name == ADMIN or not KEY.fullmatch(secret) or None in limits:
        return None
    own = {limit[1]: limit[2] for limit in limits if limit}
    if len(own) < len(rest) or not own.get("concurrency", "0").isdecimal():
        return None
    rate = float(own.get("rate", settings.key_rate))
    return Key(name, secret.encode(), 0, rate, int(own.get("concurrency", settings.key_concurrency)))


def _admin(settings: Settings) -> bytes | None:
    if settings.admin_key:
        return settings.admin_key.get_secret_value().encode()
    if settings.admin_key_file is None:
        return None
    secret = _text(settings.admin_key_file).strip()
    if not KEY.fullmatch(secret):
        raise SettingsError(f"{settings.admin_key_file}: expected one key, printable ASCII without blanks")
    return secret.encode()


def _text(file: Path) -> str:
    try:
        with file.expanduser().open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise SettingsError(f"{file}: a file of keys has at most {MAX_FILE_BYTES} bytes")
        return content.decode("ascii")
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: keys are printable ASCII") from None
