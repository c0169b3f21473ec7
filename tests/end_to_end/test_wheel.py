"""The wheel alone does what the checkout does, in a folder with packages of the same names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
import setuptools

from nestfl.bundle import APP, app_files
from nestfl.guarded.pinned_code import fingerprint_of

OFFLINE = ("--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")
SHORT = (
    *("fleet=small", "rounds=1", "train.epochs=1", "train.augment=false", "evaluate.every=0"),
    *("dataset.max_train=120", "dataset.max_test=40"),
)

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a build reads: it leaves files beside them."""
    folder = tmp_path_factory.mktemp("source")
    for name, file in app_files(APP).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / name)
    for name in ("LICENSE", "README.md", "setup.py"):
        shutil.copy(APP / name, folder)
    shutil.copytree(APP / "nestfl", folder / "nestfl")
    return folder


def built(source: Path, folder: Path) -> Path:
    """The wheel of a source, without what it needs and without the network."""
    pip = [sys.executable, "-m", "pip", "wheel", *OFFLINE, "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that has the wheel, and sees what this one has installed."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    installed = Path(setuptools.__file__).parents[1]  # whose own .pth files do not count there
    (packages / "installed.pth").write_text(f"{installed}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install"]
    subprocess.run([*pip, *OFFLINE, "--ignore-installed", str(wheel)], check=True)
    return home / "bin"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own project, with names that nestfl's packages have too."""
    folder = tmp_path_factory.mktemp("a project")
    (folder / "models").mkdir()
    for name in ("data.py", "training.py", "models/__init__.py"):
        (folder / name).write_text("raise RuntimeError('this is my own')\n")
    return folder


def said(environment: Path, folder: Path, program: str, *arguments: str) -> str:
    """What a program of the environment says that is started in a folder."""
    done = subprocess.run(
        [environment / program, *arguments],
        cwd=folder,
        env=own_variables(),
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_a_wheel_has_one_name_at_the_top_and_the_app_as_it_is_sent(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        inside = "nestfl/_app/"
        app = {name.removeprefix(inside) for name in names if name.startswith(inside)}
        assert {name.partition("/")[0] for name in names} == {"nestfl"}
        assert app == set(app_files(APP))
        assert archive.read(f"{inside}conf/config.yaml") == (APP / "conf/config.yaml").read_bytes()


def test_a_source_distribution_makes_the_same_wheel(
    source: Path, wheel: Path, tmp_path: Path
) -> None:
    make = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", make, str(tmp_path)], cwd=source, check=True, capture_output=True
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    again = built(tmp_path / archive.name.removesuffix(".tar.gz"), tmp_path / "wheel")
    with ZipFile(wheel) as first, ZipFile(again) as second:
        assert {each.filename: each.CRC for each in first.infolist()} == {
            each.filename: each.CRC for each in second.infolist()
        }


def test_the_wheel_sends_the_code_that_a_checkout_sends(environment: Path, project: Path) -> None:
    assert said(environment, project, "nestfl", "fingerprint").strip() == fingerprint_of(APP)


def test_the_wheel_runs_compares_plans_predicts_and_serves_from_anywhere(
    environment: Path, project: Path
) -> None:
    def nestfl(*arguments: str) -> str:
        return said(environment, project, "nestfl", *arguments)

    nestfl("run", *SHORT, "strategy=depthfl", "name=ray")
    assert "accuracy" in nestfl("predict", "runs/ray")
    local = ("-m", "nestfl", "compare", *SHORT, "strategy=heterofl,fedavg", "seed=0", "name=two")
    said(environment, project, "python", *local)  # each run on the local engine
    assert "fedavg" in (project / "runs" / "two" / "table.md").read_text()
    assert "resnet20" in nestfl("plan", "--model", "resnet20", "--levels", "2", "--no-latency")
    nestfl("split", "runs/ray", "--output", "parts", "--exits", "1,2", "--forward", "0.5")
    with subprocess.Popen(
        [environment / "nestfl", "serve", "parts", "--listen", "127.0.0.1:9461"],
        cwd=project,
        env=own_variables(),
        stdout=subprocess.PIPE,
        text=True,
    ) as serving:
        assert serving.stdout is not None
        try:
            told = list(iter(serving.stdout.readline, "Ctrl-C stops all\n"))
        finally:
            serving.terminate()
    assert [line.partition(":")[0] for line in told[:2]] == ["node2", "node1"]  # both answered


def test_a_users_own_script_finds_nestfl_before_its_own_folders(
    environment: Path, project: Path
) -> None:
    script = "import nestfl\nfrom models import Slice\nprint(Slice(width=0.5).width)"
    assert said(environment, project, "python", "-c", script) == "0.5\n"
