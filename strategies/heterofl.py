"""HeteroFL (Diao et al., 2021): levels of width, with static batch norm and a masked loss.

Its norm, its scaler and its loss are the model's and the objective's (conf/strategy/heterofl.yaml).
What is its own are the statistics: training keeps none, so before a test all clients run their
level's network over their data, and the server averages what they saw.
"""

from __future__ import annotations

from flwr.serverapp import Grid

from models import Slice, SliceMap, State
from models.layers import StaticBatchNorm2d
from models.slicing import is_running_statistic
from protocol.records import ProtocolError, Trained, unpack
from strategies.aggregation import NestedMean, RefusedStateError
from strategies.base import NestedStrategy
from strategies.evaluation import ask
from strategies.folding import check_examples
from strategies.submodels import Submodel


class HeteroFL(NestedStrategy):
    def before_evaluation(self, grid: Grid) -> None:
        full = self.federation.task.build(Slice(), device="meta")
        if not any(isinstance(module, StaticBatchNorm2d) for module in full.modules()):
            return
        mean = NestedMean(unit=max(1, *(c.profile.examples for c in self.clients.values())))
        found = ask(self, grid, "statistics", "query.statistics", self.submodel_of, self.round)
        for number, content in found.items():
            client = self.clients[number]
            form, mapping = self._statistics_of(self.submodel_of(client))
            try:
                gathered = unpack(content.array_records["arrays"], form)
                report = Trained.read(content)
                check_examples(report, client)
                mean.add(gathered, mapping, report.examples)
            except (ProtocolError, RefusedStateError, KeyError):
                continue  # a client that cannot gather is not missed
        self.state = mean.result(self.state)

    def _statistics_of(self, submodel: Submodel) -> tuple[State, SliceMap]:
        form = {name: t for name, t in submodel.form.items() if is_running_statistic(name)}
        return form, SliceMap({name: submodel.map.regions[name] for name in form})
