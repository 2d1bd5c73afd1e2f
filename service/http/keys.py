"""API keys: from variables or files, each with a name for the log and limits of its own."""

import asyncio
import hmac
import logging
import re
import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from service.settings import KEY, Settings, SettingsError, check_key_limit
from service.stopping import take_hangups

Headers = Iterable[tuple[bytes, bytes]]

MAX_KEYS = 1000
MAX_FILE_BYTES = 2**20
NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")
# So few digits that no rate but 0 is 0 as a float, which is none.
LIMITS = {"rate": re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?"), "concurrency": re.compile(r"[0-9]{1,20}")}
LINE = "NAME:KEY, or NAME:KEY rate=REQUESTS_PER_SECOND concurrency=REQUESTS for limits of its own"
ADMIN = "admin"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Key:
    """A key that opens the service.

    Attributes:
        name: for the log, and to count its use; the key itself is never shown.
        secret: what a client sends.
        rate: requests per second that it may send; 0 for any number.
        concurrency: of its requests that may be under way at once; 0 for any number.
    """

    name: str
    secret: bytes
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
        self.admin = Key(ADMIN, admin) if admin else None
        self._all = (*clients, *([self.admin] if self.admin else []))
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
        take_hangups()


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
            yield Key(f"key-{number}", found, settings.key_rate, settings.key_concurrency)


def _of_file(settings: Settings) -> list[Key]:
    """One key a line; blank lines and those that begin with # are left out."""
    file = settings.api_keys_file
    if file is None:
        return []
    found: dict[str, Key] = {}
    for number, line in enumerate(_text("CAPSNET_API_KEYS_FILE", file).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            key = _key(line, settings)
        except ValueError as error:
            raise SettingsError(f"{file}, line {number}: {error}") from None
        if key.name in found or any(key.secret == other.secret for other in found.values()):
            raise SettingsError(f"{file}, line {number}: {key.name} or its key comes twice")
        found[key.name] = key
    if not found:
        raise SettingsError(f"{file} has no keys, so nobody could use the service")
    return [*found.values()]


def _key(line: str, settings: Settings) -> Key:
    """What a line says; ValueError if that cannot be understood, or a limit makes no sense."""
    entry, *rest = line.split()
    name, _, secret = entry.partition(":")
    limits = dict(map(_limit, rest))
    if not NAME.fullmatch(name) or name == ADMIN or not KEY.fullmatch(secret) or len(limits) < len(rest):
        raise ValueError(f"expected {LINE}")
    rate = limits.get("rate", settings.key_rate)
    return Key(name, secret.encode(), rate, int(limits.get("concurrency", settings.key_concurrency)))


def _limit(word: str) -> tuple[str, float]:
    """`rate=2.5` as its name and its number."""
    name, _, digits = word.partition("=")
    if name not in LIMITS or not LIMITS[name].fullmatch(digits):
        raise ValueError(f"expected {LINE}")
    try:
        check_key_limit(name, float(digits))
    except ValueError as error:
        raise ValueError(f"{word}: {error}") from None
    return name, float(digits)


def _admin(settings: Settings) -> bytes | None:
    if settings.admin_key:
        return settings.admin_key.get_secret_value().strip().encode()
    if settings.admin_key_file is None:
        return None
    variable = "CAPSNET_ADMIN_KEY_FILE"
    secret = _text(variable, settings.admin_key_file).strip()
    if not KEY.fullmatch(secret):
        raise SettingsError(
            f"{variable}={settings.admin_key_file}: expected one key, printable ASCII without blanks"
        )
    return secret.encode()


def _text(variable: str, file: Path) -> str:
    """What a file has that a variable names."""
    try:
        with file.expanduser().open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise SettingsError(f"{variable}={file}: a file of keys has at most {MAX_FILE_BYTES} bytes")
        return content.decode("ascii")
    except OSError as error:
        raise SettingsError(f"{variable}={file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{variable}={file}: keys are printable ASCII") from None
