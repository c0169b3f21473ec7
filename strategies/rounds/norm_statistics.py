"""Static batch norm (HeteroFL): training keeps no statistics, so clients gather them for a test.

All clients run their level's network over their training data, and the server averages what they
saw, as it averages weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.serverapp import Grid

from models import Slice, SliceMap, State
from models.layers import StaticBatchNorm2d
from models.slicing import is_running_statistic
from protocol.reading import ProtocolError
from protocol.records import Trained, read_slice
from strategies.aggregation.nested_mean import NestedMean, RefusedStateError
from strategies.levels.submodels import Submodel
from strategies.rounds.evaluation import ask
from strategies.rounds.folding import check_examples

if TYPE_CHECKING:
    from strategies.base import NestedStrategy


def gather_statistics(strategy: NestedStrategy, grid: Grid) -> None:
    """Give the strategy's state fresh statistics, if its network has static norms."""
    full = strategy.federation.task.build(Slice(), device="meta")
    if not any(isinstance(module, StaticBatchNorm2d) for module in full.modules()):
        return
    clients, submodel_of = strategy.clients, strategy.submodel_of
    mean, tally = NestedMean(), strategy.tally.asked["statistics"]
    found = ask(strategy, grid, "statistics", "query.statistics", submodel_of, strategy.round)
    for number, content in found.items():
        form, mapping = _statistics_of(submodel_of(clients[number]))
        try:
            gathered = read_slice(content, form)
            report = Trained.read(content)
            check_examples(report, clients[number])
            strategy.federation.max_update.check(gathered, mapping, strategy.state)
            mean.add(gathered, mapping, report.examples)
        except (ProtocolError, RefusedStateError) as refusal:
            tally.refuse(number, refusal.reason, str(refusal))
    strategy.state = mean.result(strategy.state)


def _statistics_of(submodel: Submodel) -> tuple[State, SliceMap]:
    form = {name: t for name, t in submodel.form.items() if is_running_statistic(name)}
    return form, SliceMap({name: submodel.map.regions[name] for name in form})
