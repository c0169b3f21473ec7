"""Static batch norm (HeteroFL): training keeps no statistics, so clients gather them for a test.

Clients run their level's network over their training data, and the server averages what they
saw, as it averages weights.
"""

from __future__ import annotations

from flwr.serverapp import Grid

from models import Slice, SliceMap, State
from models.layers import StaticBatchNorm2d
from models.slicing import is_running_statistic
from protocol.reading import ProtocolError
from protocol.records import read_slice
from protocol.reports import Trained
from strategies.aggregation.update import RefusedUpdateError, Update
from strategies.levels.submodels import Submodel
from strategies.method import Method
from strategies.rounds.folding import check_examples
from strategies.rounds.observer import Observer
from strategies.rounds.questions import Answers, Question, ask
from strategies.rounds.tally import AskTally, Tally
from training.testing import FEWEST_FOR_STATISTICS


def with_statistics(method: Method, grid: Grid, tally: Tally, observer: Observer) -> State:
    """Return the global state with fresh statistics, where the network has static norms.

    Clients with too few examples for statistics are not asked.
    """
    full = method.federation.task.build(Slice(), device="meta")
    if not any(isinstance(module, StaticBatchNorm2d) for module in full.modules()):
        return method.state
    questions = [
        Question(client, cut, what="statistics")
        for client in method.roster.answering
        if client.profile.examples >= FEWEST_FOR_STATISTICS
        for cut in method.gathered_by(client)
    ]
    answers = ask(method, "query.statistics", questions, grid, tally, observer)
    return _aggregated(answers, method, tally.asked["statistics"])


def _aggregated(answers: Answers, method: Method, tally: AskTally) -> State:
    aggregator = method.aggregator()
    for question, content in answers:
        form, mapping = _statistics_of(method.submodels.of(question.cut))
        try:
            report, gathered = Trained.read(content), read_slice(content, form)
            check_examples(report, question.client)
            client, level = question.client.number, question.cut.level
            update = Update(
                gathered,
                mapping,
                report.examples,
                client,
                level.slice,
                level.number,
                method.state,
            )
            method.federation.max_update.check(update, method.state)
            aggregator.add(update)
        except (ProtocolError, RefusedUpdateError) as refusal:
            tally.refuse(question.client.number, refusal.reason, str(refusal))
    return aggregator.result(method.state)


def _statistics_of(submodel: Submodel) -> tuple[State, SliceMap]:
    form = {name: t for name, t in submodel.form.items() if is_running_statistic(name)}
    return form, SliceMap({name: submodel.map.regions[name] for name in form})
