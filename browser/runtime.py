"""ONNX Runtime Web from npm, of the version that package-lock.json pins."""

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
PINNED = ("package.json", "package-lock.json")
FETCH_MS = 30_000  # until npm gives a download up
FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")


class NpmError(RuntimeError):
    """npm is missing or has failed; the message says which, and what to do."""


def runtime_files(folder: Path) -> list[Path]:
    """The files of the runtime, installed into a folder unless they are there.

    Args:
        folder: of this function's own; npm installs below it.

    Raises:
        NpmError: there is no npm, or it cannot install the packages.
    """
    files = [folder / "node_modules" / "onnxruntime-web" / "dist" / name for name in FILES]
    stamp = folder / "installed-lock.json"
    lock = (HERE / PINNED[1]).read_text()
    folder.mkdir(parents=True, exist_ok=True)
    if not (stamp.is_file() and stamp.read_text() == lock and all(file.is_file() for file in files)):
        _install(folder)
        stamp.write_text(lock)
    return files


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NpmError(
            "there is no npm, with which the playground's runtime is installed: install Node.js 18 or later "
            "(on Debian and Ubuntu: apt install npm)"
        )
    for name in PINNED:
        shutil.copy(HERE / name, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", f"--fetch-timeout={FETCH_MS}"]
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise NpmError(f"npm cannot install the playground's runtime: {' '.join(ran.stderr.split())}")
