"""Puts the app into the wheel, as nestfl/_app; everything else is in pyproject.toml.

The app's packages have short names, such as `data`. Only `nestfl` is installed at the top level,
and `import nestfl` puts the folder of the app on the path.
"""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import rmtree

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))

from nestfl.bundle import APP, app_files, copy_app


class BuildWithApp(build_py):
    """Builds the package `nestfl` with the files of the app's Flower bundle in it."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # an editable install imports the checkout itself
            built = Path(self.build_lib, "nestfl", "_app")
            rmtree(built, ignore_errors=True)  # files of an earlier build
            copy_app(APP, built)

    def get_source_files(self) -> list[str]:
        """Return the files that a source distribution needs."""
        return [*super().get_source_files(), *app_files(APP)]


setup(cmdclass={"build_py": BuildWithApp})
