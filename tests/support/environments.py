"""Environments that have never seen the checkout, and the wheels that are installed into them.

Links stand in for an installation of third-party packages: copying torch would take gigabytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("libreyolo", "__editable__")
LEFT_OUT = (
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
    ".*",
    "plugins",
    "tests",
    "docs",
    "site",
    "runs",
    "benchmarks",
)
"""What a wheel does not need. A ``build`` folder in particular would bring files back that are long deleted."""
QUIET = ("--quiet", "--disable-pip-version-check", "--no-deps")


class Wheels:
    """Wheels built on demand, each once, away from the checkout.

    Args:
        folder: an empty folder for all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "wheels"
        self.sources = folder / "sources"
        self.folder.mkdir()
        self.built: dict[Path, Path] = {}

    def of(self, *sources: Path) -> list[Path]:
        """The wheels of packages, given by their folders."""
        missing = [s for s in dict.fromkeys(sources) if s not in self.built]
        copies = []
        for source in missing:
            name = source.name if source != ROOT else "libreyolo-core"
            shutil.copytree(source, self.sources / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
            copies.append(str(self.sources / name))
        if copies:
            before = set(self.folder.glob("*.whl"))
            command = [sys.executable, "-m", "pip", "wheel", *QUIET, "--no-build-isolation", "-w", str(self.folder)]
            subprocess.run([*command, *copies], check=True, cwd=self.folder)
            made = {w.name.split("-")[0]: w for w in set(self.folder.glob("*.whl")) - before}
            for source, copy in zip(missing, copies, strict=True):
                self.built[source] = made[Path(copy).name.replace("-", "_")]
        return [self.built[s] for s in sources]


def core() -> Path:
    """The folder of the core's package."""
    return ROOT


def plugin(name: str) -> Path:
    """The folder of a package in ``plugins/``, without ``libreyolo-``."""
    return ROOT / "plugins" / f"libreyolo-{name}"


def handmade_wheel(folder: Path, distribution: str, modules: Mapping[str, str], *, version: str = "1.0") -> Path:
    """A wheel written directly: modules by file name, each a plugin under its own name."""
    package = distribution.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    points = "".join(f"{m.removesuffix('.py')} = {m.removesuffix('.py')}\n" for m in modules)
    files = {
        **modules,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by-hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[libreyolo]\n{points}",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


class Environment:
    """A virtual environment with the third-party packages of this one, and nothing of ours.

    Args:
        home: an empty folder for it.
    """

    def __init__(self, home: Path) -> None:
        self.bin = home / "env" / "bin"
        self.cache = home / "cache"
        venv.create(home / "env", with_pip=False, symlinks=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = home / "env" / "lib" / version / "site-packages"
        for entry in Path(pytest.__file__).parents[1].iterdir():
            if not entry.name.startswith(OURS) and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
        # OpenCV's loader resolves links and then does not recognise a search path that begins with this folder.
        (site / "opencv_behind_a_link.pth").write_text("import sys; sys.OpenCV_REPLACE_SYS_PATH_0 = True\n")
        for tool in ("pip", "pytest"):
            script = self.bin / tool
            script.write_text(f'#!/bin/sh\nexec "{self.bin / "python"}" -m {tool} "$@"\n')
            script.chmod(0o755)

    def variables(self) -> dict[str, str]:
        """What a shell with this environment activated has, kept away from the user's caches and from registries."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        return {
            **kept,
            "PATH": f"{self.bin}{os.pathsep}{kept.get('PATH', '')}",
            "LIBREYOLO_CACHE": str(self.cache),
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }

    def install(self, *wheels: Path) -> None:
        """Install wheels without their dependencies."""
        command = [str(self.bin / "python"), "-m", "pip", "install", *QUIET, *map(str, wheels)]
        subprocess.run(command, check=True, env=self.variables())

    def run(self, *command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment in a folder."""
        words = [str(self.bin / command[0]), *command[1:]]
        env = {**self.variables(), **variables}
        return subprocess.run(words, capture_output=True, text=True, cwd=folder, env=env, check=False)

    def libreyolo(self, *arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command line."""
        return self.run("libreyolo", *arguments, folder=folder, **variables)
