"""`python -m nestfl` is `nestfl`."""

from nestfl.commands import app

app(prog_name="nestfl")
