"""How much the gradients of each exit vary, as the clients measure it before the first round (CIS).

A client has the network up to its own exit, with all exits on the way, and measures each of them.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median_low

from flwr.serverapp import Grid

from protocol.reading import ProtocolError
from protocol.variances import Variances
from strategies.federation import FederationError
from strategies.nodes.enrolment import Client
from strategies.levels.planning import Level
from strategies.levels.submodels import Cut
from strategies.method import Method
from strategies.rounds.questions import Question, ask
from strategies.rounds.tally import AskTally, Tally

WHAT = "variances"


def measured_variances(method: Method, grid: Grid, batches: int) -> tuple[list[float], AskTally]:
    """Return each exit's variance: the median of the clients', so that no single one decides.

    With it comes who was asked, and who did not answer.
    """
    questions = [
        Question(
            client, Cut(_with_exits_below(method, client)), told={"batches": batches}, what=WHAT
        )
        for client in method.clients.values()
    ]
    tally = Tally(0)
    answers = ask(method, "query.variances", questions, grid, tally)
    counts = tally.asked[WHAT]
    found: list[list[float]] = [[] for _ in method.levels]
    for question, content in answers:
        try:
            measured = Variances.read(content, question.cut.level.number)
        except ProtocolError as error:
            counts.refuse(question.client.number, error.reason, str(error))
            continue
        for exits, variance in zip(found, measured.exits, strict=False):
            exits.append(variance)
    for number, each in enumerate(found, 1):
        if not each:
            why = "; ".join(f"client {who}: {what}" for who, what in counts.problems.items())
            raise FederationError(
                f"no client has measured how much the gradients of exit {number} vary, which takes "
                f"two batches of examples ({why[:300]}): lower train.batch_size, or choose other "
                "weights than balanced"
            )
    return [median_low(each) for each in found], counts


def _with_exits_below(method: Method, client: Client) -> Level:
    """Return a client's level with all exits on its way."""
    own = method.level_of(client)
    exits = tuple(each.split.depth for each in method.levels[: own.number])
    return replace(own, slice=replace(own.slice, exits=exits))
