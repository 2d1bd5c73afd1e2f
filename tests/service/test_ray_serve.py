"""The service on Ray Serve, on a cluster of this machine: it survives a dead node and a rolling update."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.ray_serve import (
    LOST,
    QUEUED_PER_REPLICA,
    AnswerForTheLost,
    Arguments,
    build,
    replicas_for_queue,
)
from tests.support.http_load import under_load
from tests.support.live_service import free_port, wait_until
from tests.support.small_pictures import random_png
from tests.support.tiny_bundle import write_bundle

START_S = 120
CLIENTS = 8
# A head without cores, which has the proxy, and two nodes with a core each for a replica each. Each line of
# the input is a command. What hangs is said before the test's time is over.
CLUSTER = """
import faulthandler, sys
import ray
from ray import serve
from ray.cluster_utils import Cluster
from service.ray_serve import Arguments, build

def deploy(release):
    serve.run(build(Arguments(models=models, cpus=1, min_replicas=2, max_replicas=2, release=release)))

faulthandler.dump_traceback_later(200)
models, port = sys.argv[1], int(sys.argv[2])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
ray.init(address=cluster.address, log_to_driver=False)
serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
deploy("1")
print("ready", flush=True)
for line in sys.stdin:
    if line == "kill\\n":
        cluster.remove_node(nodes.pop(), allow_graceful=False)
    else:
        deploy(line)
    print(line.strip(), "is done", file=sys.stderr, flush=True)
    print("ready", flush=True)
serve.shutdown()
ray.shutdown()
cluster.shutdown()
"""


class Deployed(SimpleNamespace):
    """A deployment of two replicas on two nodes, and what commands its cluster."""

    address: tuple[str, int]
    running: "subprocess.Popen[str]"

    def tell(self, command: str) -> None:
        self.running.stdin.write(f"{command}\n")
        self.running.stdin.flush()
        self.wait()

    def wait(self) -> None:
        assert "ready\n" in self.running.stdout


@contextmanager
def deployed(models: Path) -> Iterator[Deployed]:
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.ray_serve:proxy_middleware",
        "CAPSNET_RESCAN_S": "0",
        "CAPSNET_DEVICE": "cpu",
    }
    pipe, port = subprocess.PIPE, free_port()
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER, str(models), str(port)],
        stdin=pipe,
        stdout=pipe,
        text=True,
        env=environment,
        start_new_session=True,
    ) as running:
        try:
            found = Deployed(address=("127.0.0.1", port), running=running)
            found.wait()
            yield found
        finally:
            running.stdin.close()
            try:
                running.wait(60)
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.timeout(240)
def test_a_new_release_loses_no_request_and_a_dead_node_only_those_in_its_hands(tmp_path: Path) -> None:
    write_bundle(tmp_path / "tiny" / "1", seed=1)
    with deployed(tmp_path) as cluster:
        base = f"http://127.0.0.1:{cluster.address[1]}"
        assert httpx.get(f"{base}/readyz").json()["models"] == ["tiny/1"]
        unknown = httpx.get(f"{base}/nothing")
        assert unknown.status_code == 404
        assert unknown.json()["type"] == "/problems/not-found"

        write_bundle(tmp_path / "tiny" / "2", seed=2)
        with under_load(cluster.address, CLIENTS, random_png(1)) as load:
            wait_until(lambda: len(load.outcomes) > CLIENTS)
            cluster.tell("2")
            updated = time.monotonic()
            wait_until(lambda: load.outcomes[-1].began > updated)
        assert {outcome.status for outcome in load.outcomes} == {200}
        assert json.loads(load.outcomes[0].answer)["version"] == 1
        after = [outcome for outcome in load.outcomes if outcome.began > updated]
        assert after
        assert {json.loads(outcome.answer)["version"] for outcome in after} == {2}

        with under_load(cluster.address, CLIENTS, random_png(1)) as load:
            wait_until(lambda: len(load.outcomes) > CLIENTS)
            cluster.tell("kill")
            settled = time.monotonic() + 5
            wait_until(lambda: load.outcomes[-1].began > settled)
        failed = [outcome for outcome in load.outcomes if outcome.status != 200]
        assert len(failed) <= CLIENTS
        assert all(outcome.began < settled for outcome in failed)
        for outcome in load.lost:  # the proxy had sent the head of the answer, and nobody can take that back
            assert outcome.answer.startswith(b"IncompleteRead(")
        for outcome in load.of_status(503):
            assert json.loads(outcome.answer)["detail"] == LOST
            assert outcome.retry_after
        assert len(failed) == len(load.lost) + len(load.of_status(503))


def test_replicas_follow_the_images_that_wait_in_all_of_them() -> None:
    queued = {"queued_images": {"a": 3.0 * QUEUED_PER_REPLICA, "b": 1.0}}
    assert replicas_for_queue(SimpleNamespace(aggregated_metrics=queued)) == (4, {})
    assert replicas_for_queue(SimpleNamespace(aggregated_metrics={})) == (0, {})


def test_an_unknown_argument_is_an_error() -> None:
    with pytest.raises(ValueError, match="modells"):
        Arguments(modells="models")


def test_the_file_of_the_page_is_a_configuration_of_serve() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving" / "ray-serve.md").read_text()
    file = ServeDeploySchema.model_validate(yaml.safe_load(page.split("```yaml\n")[1].split("```")[0]))
    args = Arguments.model_validate(file.applications[0].args)
    assert (args.max_replicas, args.release) == (8, "1")


def test_fewer_replicas_at_most_than_at_least_are_an_error() -> None:
    with pytest.raises(ValueError, match="max_replicas"):
        build(Arguments(min_replicas=3, max_replicas=2))


def test_a_request_that_its_replica_left_without_an_answer_gets_503() -> None:
    async def dead(scope: Scope, receive: Receive, send: Send) -> None:
        """What Ray's proxy does once the replica is gone: nothing has been sent, and it returns."""

    answer = asked(AnswerForTheLost(dead))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (answer.json()["type"], answer.json()["detail"]) == ("/problems/not-ready", LOST)


def test_an_answer_of_a_replica_is_left_as_it_is() -> None:
    answer = asked(AnswerForTheLost(PlainTextResponse("here", 418)))
    assert (answer.status_code, answer.text) == (418, "here")


def asked(app: ASGIApp) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/readyz")

    return asyncio.run(ask())
