"""Keys with names and limits, from variables and from files that are read again."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from service.errors import TooManyRequestsError
from service.http import key_use
from service.http.key_use import PLACES, SHARED_BYTES, KeyUse
from service.http.keys import MAX_KEYS, Key, Keys
from service.settings import SettingsError, read_settings
from tests.support.live_process import LiveProcess, live_process
from tests.support.live_service import live_service, settings_for, wait_until
from tests.support.tiny_bundle import write_bundle

FILE = """
# who has it
lab:first-key
  phone:second:key rate=2.5 concurrency=3
"""


def written(folder: Path, text: str, name: str = "keys") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def from_file(folder: Path, text: str, **settings: object) -> Keys:
    return Keys(settings_for(folder, api_keys_file=written(folder, text), **settings))


def sending(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-api-key", key.encode())]


# -- files ---------------------------------------------------------------------------------------------------


def test_a_file_names_keys_and_gives_them_limits(tmp_path):
    keys = from_file(tmp_path, FILE, key_rate=9, key_concurrency=8)
    assert keys.are_needed
    assert keys.find(sending("first-key")) == Key("lab", b"first-key", 9, 8)
    assert keys.find(sending("second:key")) == Key("phone", b"second:key", 2.5, 3)
    assert keys.find([(b"authorization", b"Bearer first-key")]).name == "lab"
    assert keys.find(sending("second")) is None
    assert keys.find([]) is None


def test_keys_of_the_variable_are_numbered_and_the_admin_key_has_no_limits(tmp_path):
    secrets = {"api_keys": SecretStr("one, two\n"), "admin_key": SecretStr(" three\n")}
    keys = Keys(settings_for(tmp_path, **secrets, key_rate=5))
    assert [keys.find(sending(key)).name for key in ("one", "two", "three")] == ["key-1", "key-2", "admin"]
    assert keys.find(sending("two")).rate == 5
    assert keys.find(sending("three")).rate == 0
    assert keys.has_admin(sending("three"))
    assert not keys.has_admin(sending("two"))


def test_the_admin_key_may_come_from_a_file_alone(tmp_path):
    keys = Keys(settings_for(tmp_path, admin_key_file=written(tmp_path, "operator\n")))
    assert not keys.are_needed
    assert keys.has_admin(sending("operator"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("first-key", "line 1: expected NAME:KEY, or NAME:KEY rate="),
        ("lab:", "line 1: expected NAME:KEY"),
        ("lab:Zk3vQ8wB\n\na b:c", "line 3: expected NAME:KEY"),
        ("admin:Zk3vQ8wB", "line 1: expected NAME:KEY"),
        ("lab:Zk3vQ8wB rate=fast", "line 1: expected NAME:KEY"),
        ("lab:Zk3vQ8wB rate=1 rate=2", "line 1: expected NAME:KEY"),
        ("lab:Zk3vQ8wB concurrency=1.5", "line 1: expected NAME:KEY"),
        ("lab:Zk3vQ8wB speed=1", "line 1: expected NAME:KEY"),
        ("lab:Zk3vQ8wB,b", "line 1: expected NAME:KEY"),
        ("lab:Zk3vQ8wB\nlab:b", "line 2: lab or its key comes twice"),
        ("lab:Zk3vQ8wB\nphone:Zk3vQ8wB", "line 2: phone or its key comes twice"),
        ("# nobody\n", "has no keys, so nobody could use the service"),
        (
            "lab:Zk3vQ8wB rate=0." + 19 * "0" + "1",
            "line 1: rate=0.00000000000000000001: expected 0.001 to 1000000 requests per second",
        ),
        ("lab:Zk3vQ8wB rate=0." + 999 * "0" + "1", "line 1: expected NAME:KEY"),
        ("lab:Zk3vQ8wB\nphone:b rate=1000001", "line 2: rate=1000001: expected 0.001 to 1000000"),
        (
            "lab:Zk3vQ8wB concurrency=1000001",
            "line 1: concurrency=1000001: expected 1 to 1000000 requests at once",
        ),
        ("lab:Zk3vQ8wB concurrency=10000000", "line 1: concurrency=10000000: expected 1 to 1000000"),
        ("lab:Zk3vQ8wB concurrency=" + 5000 * "9", "line 1: expected NAME:KEY"),
        ("lab:\xe4", "keys are printable ASCII"),
        ("".join(f"n{n}:k{n}\n" for n in range(MAX_KEYS + 1)), f"at most {MAX_KEYS} can be told apart"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_line_and_no_key(tmp_path, text, message):
    with pytest.raises(SettingsError) as caught:
        from_file(tmp_path, text)
    assert message in str(caught.value)
    assert not any(key in str(caught.value) for key in ("first-key", "Zk3vQ8wB"))


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path):
    for file, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        for name in ("api_keys_file", "admin_key_file"):
            with pytest.raises(SettingsError, match=f"^CAPSNET_{name.upper()}={file}: {reason}"):
                Keys(settings_for(tmp_path, **{name: file}))
    with pytest.raises(SettingsError, match="at most 1048576 bytes"):
        from_file(tmp_path, "#" * (2**20 + 1))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CAPSNET_KEY_RATE", "1e-321", "0.001 to 1000000 requests per second"),
        ("CAPSNET_KEY_RATE", "1e300", "0.001 to 1000000 requests per second"),
        ("CAPSNET_KEY_CONCURRENCY", "5000000000", "1 to 1000000 requests at once"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(monkeypatch, name, value, expected):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"{name}='{value}': expected {expected}, or 0 for any number"):
        read_settings()


def test_the_least_and_the_greatest_limit_are_accepted_and_0_lifts_the_default(tmp_path):
    limits = ("rate=0.001 concurrency=1", "rate=1000000 concurrency=1000000", "rate=0 concurrency=0")
    text = "".join(f"lab-{key}:{key} {limit}\n" for key, limit in zip("abc", limits, strict=True))
    keys = from_file(tmp_path, text, key_rate=0.001, key_concurrency=1)
    found = [keys.find(sending(key)) for key in "abc"]
    assert [(key.rate, key.concurrency) for key in found] == [(0.001, 1), (1e6, 10**6), (0, 0)]


def test_the_admin_key_is_no_clients_key(tmp_path):
    with pytest.raises(SettingsError, match="the admin key is also a key of clients"):
        from_file(tmp_path, "lab:same", admin_key_file=written(tmp_path, "same", "admin"))


def test_limits_without_keys_are_an_error(tmp_path):
    with pytest.raises(SettingsError, match="limit the use of each key, and there are none"):
        Keys(settings_for(tmp_path, key_rate=1))


@pytest.mark.parametrize("name", ["CAPSNET_API_KEYS", "CAPSNET_ADMIN_KEY"])
def test_a_key_comes_from_one_place(monkeypatch, name, tmp_path):
    monkeypatch.setenv(name, "a-key")
    monkeypatch.setenv(f"{name}_FILE", str(tmp_path))
    with pytest.raises(SettingsError, match=f"{name} and {name}_FILE are both set"):
        read_settings()


def test_reading_again_takes_all_or_nothing(tmp_path):
    keys = from_file(tmp_path, "lab:old")
    written(tmp_path, "lab:new\nphone:other")
    assert keys.read() == 2
    assert keys.find(sending("old")) is None
    assert keys.find(sending("new")).name == "lab"
    written(tmp_path, "lab:newest\nnonsense")
    with pytest.raises(SettingsError, match="line 2"):
        keys.read()
    assert keys.find(sending("new")).name == "lab"


# -- limits --------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(key_use, "monotonic", lambda: now[0])
    return now


def send(use: KeyUse, key: Key) -> None:
    with use.counted(key):
        pass


def sent_at_once(use: KeyUse, key: Key) -> int:
    for count in range(100):
        try:
            send(use, key)
        except TooManyRequestsError:
            return count
    return 100


def test_a_second_of_requests_may_come_at_once_and_then_as_many_as_the_rate_lets_through(clock):
    use, key = KeyUse(), Key("lab", b"", rate=10)
    assert sent_at_once(use, key) == 10
    clock[0] += 0.3
    assert sent_at_once(use, key) == 3
    clock[0] += 60
    assert sent_at_once(use, key) == 10, "what was not sent is not saved for later"
    assert sent_at_once(use, Key("phone", b"", rate=10)) == 10, "each key has its own"


def test_a_slow_rate_lets_one_request_through_and_says_when_the_next_may_come(clock):
    use, key = KeyUse(), Key("lab", b"", rate=0.1)
    send(use, key)
    clock[0] += 2.5
    with pytest.raises(TooManyRequestsError, match=r"lab may send 0\.1 requests per second") as refusal:
        send(use, key)
    assert refusal.value.headers == {"Retry-After": "8"}
    clock[0] += 7.5
    send(use, key)


def test_requests_at_once_are_counted_until_they_end_however_they_do():
    use, key = KeyUse(), Key("lab", b"", concurrency=2)
    with use.counted(key):
        with pytest.raises(ZeroDivisionError), use.counted(key):
            raise ZeroDivisionError
        message = "may have 2 requests under way, and has 2"
        with use.counted(key), pytest.raises(TooManyRequestsError, match=message):
            send(use, key)
        send(use, key)


def test_workers_count_together_and_a_new_one_forgets_what_a_dead_one_had(tmp_path, clock):
    shared = tmp_path / "shared"
    shared.write_bytes(bytes(SHARED_BYTES))
    first, second = KeyUse(shared, 0), KeyUse(shared, 1)
    key = Key("lab", b"", rate=4, concurrency=1)
    with first.counted(key), pytest.raises(TooManyRequestsError, match="under way"):
        send(second, key)
    assert sent_at_once(second, key) == 3, "one of four was sent to the other"
    clock[0] += 60
    die_with_a_request_under_way(shared)
    with pytest.raises(TooManyRequestsError):
        send(second, key)
    KeyUse(shared, 0)
    send(second, key)


def die_with_a_request_under_way(shared: Path) -> None:
    """As the first worker, with the key that the test has."""
    begin = f"""
import os
from pathlib import Path
from service.http.key_use import KeyUse
from service.http.keys import Key
with KeyUse(Path({str(shared)!r}), 0).counted(Key("lab", b"", concurrency=1)):
    os._exit(0)
"""
    subprocess.run([sys.executable, "-c", begin], check=True)


def two_workers(folder: Path) -> tuple[KeyUse, KeyUse]:
    shared = folder / "shared"
    shared.write_bytes(bytes(SHARED_BYTES))
    return KeyUse(shared, 0), KeyUse(shared, 1)


def test_a_key_keeps_its_own_counts_when_keys_come_and_go(tmp_path, clock):
    first, second = two_workers(tmp_path)
    keys = from_file(tmp_path, "slow:a rate=0.01\nfast:b rate=50")
    send(first, keys.find(sending("a")))
    written(tmp_path, "new:d rate=0.01\nfast:b rate=50\nslow:c rate=0.01")
    keys.read()
    for use in (second, first):
        send(use, keys.find(sending("b")))
    send(second, keys.find(sending("d")))
    for use in (second, first):
        with pytest.raises(TooManyRequestsError, match="the key slow may send"):
            send(use, keys.find(sending("c")))


def test_a_key_whose_rate_was_raised_does_not_wait_for_what_the_old_one_asked(clock):
    use = KeyUse()
    send(use, Key("lab", b"", rate=0.01))
    raised = Key("lab", b"", rate=50)
    with pytest.raises(TooManyRequestsError) as refusal:
        send(use, raised)
    assert refusal.value.headers == {"Retry-After": "1"}
    clock[0] += 1
    assert sent_at_once(use, raised) == 50


def test_names_that_nobody_sends_any_more_make_room_and_those_under_way_keep_theirs(tmp_path, clock):
    first, second = two_workers(tmp_path)
    busy, slow = Key("busy", b"", concurrency=1), Key("slow", b"", rate=0.001)
    with first.counted(busy):
        send(first, slow)
        for number in range(PLACES + 10):
            clock[0] += 0.001
            send(second, Key(f"name-{number}", b"", rate=1000))
        for key in (busy, slow):
            with pytest.raises(TooManyRequestsError, match=f"the key {key.name}"):
                send(second, key)
    send(second, busy)


# -- the service ---------------------------------------------------------------------------------------------


def ask(address: object, key: str) -> httpx.Response:
    return httpx.get(f"{address}/models", headers={"x-api-key": key}, timeout=60)


def test_too_many_requests_get_429_and_open_routes_never_do(tmp_path):
    keys = written(tmp_path, "slow:slow-key rate=0.01\nfree:free-key")
    with live_service(settings_for(tmp_path, api_keys_file=keys), ready=False) as client:
        address = client.base_url
        assert ask(address, "slow-key").status_code != 429
        refused = ask(address, "slow-key")
        assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many-requests")
        assert 90 <= int(refused.headers["retry-after"]) <= 100
        assert refused.headers["content-type"] == "application/problem+json"
        assert ask(address, "free-key").status_code != 429
        assert client.get("/healthz", headers={"x-api-key": "slow-key"}).status_code == 200
        assert 'capsnet_problems_total{type="/problems/too-many-requests"} 1.0' in client.get("/metrics").text


def test_a_request_that_is_answered_slowly_holds_its_place(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    keys = written(tmp_path, "lab:lab-key concurrency=1")
    settings = settings_for(tmp_path / "models", api_keys_file=keys, default_model="tiny")
    arriving, done = threading.Event(), threading.Event()

    def slow_body():
        yield b"no "
        arriving.set()
        done.wait(60)
        yield b"picture"

    with live_service(settings) as client:
        address, found = client.base_url, []
        headers = {"x-api-key": "lab-key", "content-type": "image/png"}
        post = lambda: found.append(httpx.post(f"{address}/classify", content=slow_body(), headers=headers))  # noqa: E731
        sender = threading.Thread(target=post)
        sender.start()
        arriving.wait(60)
        wait_until(lambda: ask(address, "lab-key").status_code == 429)
        done.set()
        sender.join()
        assert found[0].status_code == 415
        assert ask(address, "lab-key").status_code == 200


def test_the_log_names_the_key_that_was_used(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    keys = written(tmp_path, "lab:secret-of-the-lab")
    with live_process(tmp_path / "models", tmp_path / "log", api_keys_file=keys) as service:
        ask(service.client.base_url, "secret-of-the-lab")
        wait_until(lambda: any(line.get("key") == "lab" for line in service.lines))
        assert "secret-of-the-lab" not in service.log.read_text()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there are no hangups here")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_hangup_has_the_keys_read_again_by_all_processes(tmp_path, workers):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    keys = written(tmp_path, "lab:old-key")
    settings = {"api_keys_file": keys, "workers": workers}
    with live_process(tmp_path / "models", tmp_path / "log", **settings) as service:
        assert statuses(service, "old-key") == {200}
        written(tmp_path, "lab:new-key")
        hang_up(service, "read 1 keys again", workers)
        assert statuses(service, "old-key") == {401}
        assert statuses(service, "new-key") == {200}
        written(tmp_path, "nonsense")
        hang_up(service, "the keys stay as they are", workers)
        assert statuses(service, "new-key") == {200}
        if workers > 1:
            replace_a_worker(service)
            assert statuses(service, "new-key") == {200}
        service.stop()
        assert service.running.wait(60) == 0


def replace_a_worker(service: LiveProcess) -> None:
    """Kill one, and wait for another."""
    ready = "accepts connections"
    lines = [line["message"] for line in service.lines if ready in line["message"]]
    os.kill(int(lines[0].split()[1]), signal.SIGKILL)
    wait_until(lambda: sum(ready in line["message"] for line in service.lines) > len(lines))


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_hangup_during_the_start_is_neither_lost_nor_the_end_of_a_process(tmp_path, workers):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    keys, log = written(tmp_path, "lab:old-key"), tmp_path / "log"
    with live_process(
        tmp_path / "models",
        log,
        starting=lambda running: hang_up_during_the_start(running, workers, log, keys),
        api_keys_file=keys,
        workers=workers,
    ) as service:
        assert [statuses(service, key) for key in ("old-key", "key-1", "key-2")] == [{401}, {401}, {200}]
        assert "is replaced" not in log.read_text()


def hang_up_during_the_start(running: subprocess.Popen[str], workers: int, log: Path, keys: Path) -> None:
    """Change the keys and send a signal twice: as early as it is held, and when keys can be read again."""
    engine = spawned(running.pid, workers + 1)[0] if workers > 1 else None
    if engine:
        os.kill(engine, signal.SIGSTOP)  # so that its models are not loaded before the test is done
    else:
        wait_until(lambda: is_holding_hangups(running.pid))
    try:
        for number in (1, 2):
            written(keys.parent, f"lab:key-{number}", "aside").replace(keys)  # no process reads half of it
            running.send_signal(signal.SIGHUP)
            wait_until(lambda number=number: log.read_text().count("read 1 keys again") >= number * workers)
    finally:
        if engine:
            os.kill(engine, signal.SIGCONT)


def spawned(supervisor: int, count: int) -> list[int]:
    """The processes that a supervisor has started: the one with the models, then the workers."""
    found: list[int] = []

    def are_there() -> bool:
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        found[:] = [
            int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return len(found) == count

    wait_until(are_there)
    return found


def is_holding_hangups(process: int) -> bool:
    blocked = re.search(r"^SigBlk:\t(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)[1]
    return bool(int(blocked, 16) & 1 << signal.SIGHUP - 1)


def hang_up(service: LiveProcess, said: str, workers: int) -> None:
    service.running.send_signal(signal.SIGHUP)
    wait_until(lambda: sum(said in line["message"] for line in service.lines) == workers)


def statuses(service: LiveProcess, key: str) -> set[int]:
    """On several connections, so that several workers answer."""
    return {ask(service.client.base_url, key).status_code for _ in range(10)}


def test_limits_are_those_of_the_service_however_many_workers_it_has(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    keys = written(tmp_path, "lab:lab-key rate=0.01")
    with live_process(tmp_path / "models", tmp_path / "log", api_keys_file=keys, workers=2) as service:
        found = [ask(service.client.base_url, "lab-key").status_code for _ in range(20)]
    assert found == [200, *[429] * 19]


def test_a_wrong_file_stops_the_start(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with (
        pytest.raises(AssertionError, match="line 1: expected NAME:KEY"),
        live_process(tmp_path / "models", tmp_path / "log", api_keys_file=written(tmp_path, "nonsense")),
    ):
        pass


def test_the_address_of_a_client_comes_from_proxies_that_are_trusted(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    for trusted, client in (("127.0.0.0/8", "192.0.2.7"), ("10.0.0.1", "127.0.0.1")):
        with live_process(tmp_path / "models", tmp_path / "log", trusted_proxies=trusted) as service:
            service.client.get("/models", headers={"X-Forwarded-For": "192.0.2.7"})
            wait_until(lambda: any(line.get("path") == "/models" for line in service.lines))
            assert {line["client"] for line in service.lines if line.get("path") == "/models"} == {client}


@pytest.mark.parametrize(("proxies", "trusted"), [("*", "*"), (" *", "*"), ("10.0.0.1, *", "*"), ("", "")])
def test_a_star_among_proxies_trusts_all_and_none_trusts_nobody(monkeypatch, proxies, trusted):
    monkeypatch.setenv("CAPSNET_TRUSTED_PROXIES", proxies)
    assert read_settings().trusted_proxies == trusted


@pytest.mark.parametrize("proxies", ["proxy.example", "10.0.0.1,", "10.0.0.0/33"])
def test_a_proxy_without_an_address_is_refused(monkeypatch, proxies):
    monkeypatch.setenv("CAPSNET_TRUSTED_PROXIES", proxies)
    with pytest.raises(SettingsError, match=r"CAPSNET_TRUSTED_PROXIES=.* is no address"):
        read_settings()
