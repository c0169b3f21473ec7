"""`python -m nestfl` is `nestfl`."""

from nestfl.cli import app

app(prog_name="nestfl")
