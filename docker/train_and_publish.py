#!/usr/bin/env python
"""Trains CAPSNET_PRESET, or resumes its run, and publishes the result as CAPSNET_MODEL_NAME's next version.

Does nothing if that is done already. A signal stops the training with a checkpoint. With PET_NNODES, which
torchrun reads, it trains together with the sidecars of other machines; each publishes to the models that it
sees, once.
"""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

STOPPED = 128 + signal.SIGTERM
COMMAND_THAT_BRINGS = (  # the preset's data: "download mnist", "make toys", or nothing
    "import sys; from training.config import load_preset; print(load_preset(sys.argv[1]).data.spec.command)"
)


class Commands:
    """Runs one command after the other. A signal is passed on to the one that runs, and none follows."""

    def __init__(self) -> None:
        self._stopped = False
        self._running: subprocess.Popen[str] | None = None
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)

    def run(self, *command: str, keep: bool = False) -> str:
        """Returns what the command prints, if it is to be kept. Ends the program where the command fails."""
        if self._stopped:
            leave()
        output = subprocess.PIPE if keep else None
        # In a group of its own, a command gets the terminal's Ctrl-C once: from here.
        self._running = subprocess.Popen(command, stdout=output, text=True, process_group=0)
        if self._stopped:
            self._running.terminate()  # the signal came before the command was known
        printed, _ = self._running.communicate()
        status, self._running = self._running.returncode, None
        if status and self._stopped:
            leave()
        if status:
            sys.exit(status if status > 0 else 128 - status)
        return printed or ""

    def _stop(self, *_: object) -> None:
        self._stopped = True
        if self._running is not None:
            self._running.terminate()


def leave() -> None:
    """Ends the program as a signal asked."""
    print("stopped; the next start resumes from here")
    sys.exit(STOPPED)


def main() -> None:
    """Brings the data, trains and publishes: each of it if it is not done."""
    commands = Commands()
    preset = os.environ.get("CAPSNET_PRESET") or "mnist-short"
    name = os.environ.get("CAPSNET_MODEL_NAME") or "capsnet-trained"
    model = Path(f"models/{name}")
    run = Path(f"runs/{name}/{preset}")  # below it, too, where the preset is the absolute path of a file
    published = run / "published"
    if published.exists():
        other = "to train another model, set CAPSNET_MODEL_NAME or CAPSNET_PRESET"
        print(f"{published.read_text().strip()} is published already; {other}")
        return
    bring_data(commands, preset)
    train(commands, preset, run)
    # Another machine may share the folder, and publish right now.
    with (run / ".publishing").open("a") as publishing:
        fcntl.flock(publishing, fcntl.LOCK_EX)
        if not published.exists():
            commands.run("capsnet-export", "bundle", str(run), "--out", str(model))
            published.write_text(f"{model}\n")


def bring_data(commands: Commands, preset: str) -> None:
    """Downloads the preset's data, which checks what is there, or makes it, which takes minutes, once."""
    bring = commands.run("python", "-c", COMMAND_THAT_BRINGS, preset, keep=True).split()
    made = bring[:1] == ["make"] and Path(os.environ["CAPSNET_DATA"], bring[1]).exists()
    if bring and not made:
        commands.run("capsnet-train", *bring)


def train(commands: Commands, preset: str, run: Path) -> None:
    """Trains the run to its end, from its last checkpoint if it has one."""
    begin = ("--preset", preset, "--out", str(run))
    trained = run / "trained"  # the other machines have ended: nobody would come to train further
    if not os.environ.get("PET_NNODES"):
        resumes = any(run.glob("checkpoints/step-*"))  # `--resume` does nothing if the run is finished
        commands.run("capsnet-train", "fit", *(("--out", str(run), "--resume") if resumes else begin))
    elif not trained.exists():
        # Else a machine that is started again cannot join (torch 2.13).
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        commands.run("torchrun", "-m", "training.cli", "fit", *begin)  # goes on from a checkpoint by itself
        trained.touch()


if __name__ == "__main__":
    main()
