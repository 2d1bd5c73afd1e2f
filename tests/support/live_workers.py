"""The processes of a service with several workers."""

from pathlib import Path

from tests.support.live_process import LiveProcess


def pids(service: LiveProcess, role: str) -> set[int]:
    """The processes that are ready, by the log; dead ones are left out."""
    ready = {"worker": "accepts connections", "the engine process": "has the models"}[role]
    said = [line["message"] for line in service.lines if line["logger"] == "service.workers.supervisor"]
    found = {
        int(message.removeprefix(role).split()[0])
        for message in said
        if message.startswith(role) and ready in message
    }
    return {pid for pid in found if Path(f"/proc/{pid}").exists()}
