"""CostModel: predicted time of any micro-kernel at any shape, with its uncertainty, learned from few measurements.

`time = work / (rate(kernel) * occ(kernel, shape) * pad(kernel, shape)) * residual(kernel, shape)`, after DietCode (MLSys'22).
`rate` is learned from features of the micro-kernel, so that one measurement serves all shapes; `residual` also sees the shape
and takes what the analytic part leaves. Both are boosted trees (xgboost) of the logarithm, in an ensemble over bootstrap
samples whose spread is the uncertainty.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tilewright.runtime.errors import ArtifactError
from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.pairs import Pairs, Rows
from tilewright.search.space.array_types import Floats, Ints

SCHEMA = 2
_SMALL = 500  # samples up to which every split is tried
_PACKED = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 2}]  # trees are words of four bytes


@dataclass(frozen=True)
class Training:
    """members: models of the ensemble. rounds: trees a model. floor: least deviation of the logarithm that is claimed.

    widen: the spread of an ensemble is smaller than its error by about this.
    """

    members: int = 5
    rounds: int = 50
    depth: int = 4
    rate: float = 0.15
    floor: float = 0.03
    widen: float = 1.5
    seed: int = 0


@dataclass(frozen=True)
class Samples:
    """Measured pairs: features, logarithm of the analytic cycles, logarithm of the seconds."""

    configs: Rows
    pairs: Rows
    base: Floats
    log_seconds: Floats

    @staticmethod
    def of(space: FeatureSpace, pairs: Pairs, seconds: Floats) -> Samples:
        rows = space.config_rows
        chosen = Rows(rows.names, rows.values[pairs.configs])
        return Samples(chosen, space.pair_rows(pairs), space.log_base(pairs), np.log(seconds))

    def __len__(self) -> int:
        return len(self.base)


class _EnsembleMember(msgspec.Struct, frozen=True):
    rate: bytes
    residual: bytes


class _Stored(msgspec.Struct, frozen=True):
    """One generation of a model; `prior` is what it corrects. families: those of FamilyModels, in their order."""

    config_names: tuple[str, ...]
    pair_names: tuple[str, ...]
    centre: float
    members: tuple[_EnsembleMember, ...]
    samples: int
    prior: _Stored | None = None
    families: tuple[tuple[str, _Stored], ...] = ()
    schema: int = SCHEMA


class CostModel:
    """Predicts logarithms of seconds. Without samples every kernel runs at one guessed rate and nothing is certain.

    Args:
        prior: a model of other operators or another machine, which this one corrects.
    """

    GUESS = -21.0  # log of the seconds a cycle takes: about 1.3 GHz
    UNKNOWN = 0.7  # deviation of the logarithm where nothing was measured

    def __init__(self, training: Training | None = None, prior: CostModel | None = None) -> None:
        self.training, self.prior = training or Training(), prior
        self._samples: list[Samples] = []
        self._config_names: tuple[str, ...] = ()
        self._pair_names: tuple[str, ...] = ()
        self._centre = 0.0
        self._members: list[tuple[_Trees, _Trees]] = []
        self._trained_on = 0

    @property
    def trained(self) -> bool:
        return bool(self._members)

    @property
    def samples(self) -> int:
        """Measurements that the model was fitted to, without its prior's."""
        return self._trained_on

    def fit(self, samples: Sequence[Samples]) -> None:
        """Learn from these samples alone (and the prior)."""
        self._samples = [s for s in samples if len(s)]
        self._train()

    def update(self, samples: Samples) -> None:
        """Learn from more samples, in place."""
        self._samples.append(samples)
        self._train()

    def predict(self, space: FeatureSpace, pairs: Pairs) -> tuple[Floats, Floats]:
        """Mean and deviation of the logarithm of the seconds of each pair."""
        rows = space.config_rows
        used, place = np.unique(pairs.configs, return_inverse=True)
        return self._predict(Rows(rows.names, rows.values[used]), place, space.pair_rows(pairs), space.log_base(pairs))

    def predict_rates(self, space: FeatureSpace, configs: Ints) -> tuple[Floats, Floats]:
        """Mean and deviation of the shape-independent part: the logarithm of seconds per analytic cycle."""
        chosen = Rows(space.config_rows.names, space.config_rows.values[configs])
        mean, deviation = (np.full(len(configs), self.GUESS), np.full(len(configs), self.UNKNOWN)) if self.prior is None \
            else self.prior.predict_rates(space, configs)
        if not self.trained:
            return mean, deviation
        found = np.stack([rate.run(chosen.under(self._config_names)) for rate, _ in self._members])
        return mean + self._centre + found.mean(axis=0), self._deviation(found)

    def save(self, path: Path) -> None:
        """One file: compressed msgpack, the trees in xgboost's own binary JSON."""
        path.write_bytes(lzma.compress(msgspec.msgpack.encode(self._stored()), filters=_PACKED))

    @staticmethod
    def load(path: Path, training: Training | None = None) -> CostModel:
        """ArtifactError when the file is damaged or of another schema."""
        return CostModel.decode(path.read_bytes(), str(path), training)

    @staticmethod
    def decode(data: bytes, name: str, training: Training | None = None) -> CostModel:
        """From the bytes of a file; errors call it `name`."""
        try:
            stored = msgspec.msgpack.decode(lzma.decompress(data), type=_Stored)
        except (lzma.LZMAError, EOFError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ArtifactError(f"{name} is no cost model: {error}") from error
        if stored.schema != SCHEMA:
            raise ArtifactError(f"{name} has schema {stored.schema}, wanted {SCHEMA}; train it again")
        return CostModel._restored(stored, training)

    def _stored(self) -> _Stored:
        members = tuple(_EnsembleMember(rate.data, residual.data) for rate, residual in self._members)
        return _Stored(self._config_names, self._pair_names, self._centre, members, self._trained_on,
                       self.prior._stored() if self.prior else None)

    @staticmethod
    def _restored(stored: _Stored, training: Training | None) -> CostModel:
        if stored.families:
            return FamilyModels({family: CostModel._restored(part, training) for family, part in stored.families})
        model = CostModel(training, CostModel._restored(stored.prior, training) if stored.prior else None)
        model._config_names, model._pair_names = stored.config_names, stored.pair_names
        model._centre, model._trained_on = stored.centre, stored.samples
        model._members = [(_Trees(m.rate), _Trees(m.residual)) for m in stored.members]
        return model

    def _predict(self, configs: Rows, place: Ints, pairs: Rows, base: Floats) -> tuple[Floats, Floats]:
        """`place`: the row of `configs` of each pair."""
        if self.prior is not None:
            mean, deviation = self.prior._predict(configs, place, pairs, base)
        else:
            mean, deviation = base + self.GUESS, np.full(len(base), self.UNKNOWN)
        if not self.trained:
            return mean, deviation
        config_values = configs.under(self._config_names)
        both = np.hstack([config_values[place], pairs.under(self._pair_names)])
        found = np.stack([rate.run(config_values)[place] + residual.run(both) for rate, residual in self._members])
        return mean + self._centre + found.mean(axis=0), self._deviation(found)

    def _deviation(self, found: Floats) -> Floats:
        return np.asarray(np.maximum(self.training.widen * found.std(axis=0), self.training.floor))

    def _train(self) -> None:
        self._trained_on = sum(map(len, self._samples))
        if not self._trained_on:
            self._members = []
            return
        self._config_names = tuple(dict.fromkeys(n for s in self._samples for n in s.configs.names))
        self._pair_names = tuple(dict.fromkeys(n for s in self._samples for n in s.pairs.names))
        configs = np.vstack([s.configs.under(self._config_names) for s in self._samples])
        both = np.hstack([configs, np.vstack([s.pairs.under(self._pair_names) for s in self._samples])])
        target = np.concatenate([s.log_seconds - self._start(s) for s in self._samples])
        self._centre = float(np.median(target))
        target = target - self._centre
        rng = np.random.default_rng(self.training.seed)
        self._members = []
        for number in range(self.training.members):
            weights = rng.poisson(1.0, len(target)).astype(float) if len(target) > 1 else np.ones(1)
            weights = np.maximum(weights, 0.02)
            rate = self._boost(configs, target, weights, number, self.training.depth)
            left = target - rate.run(configs)
            self._members.append((rate, self._boost(both, left, weights, number, self.training.depth)))

    def _start(self, s: Samples) -> Floats:
        """What is predicted before this generation's own trees."""
        if self.prior is None:
            return s.base + self.GUESS
        return self.prior._predict(s.configs, np.arange(len(s)), s.pairs, s.base)[0]

    def _boost(self, rows: Floats, target: Floats, weights: Floats, number: int, depth: int) -> _Trees:
        import xgboost

        settings = {"objective": "reg:squarederror", "base_score": 0.0, "max_depth": depth, "eta": self.training.rate,
                    "lambda": 0.5, "min_child_weight": 0.5, "subsample": 0.9, "colsample_bytree": 0.7,
                    "tree_method": "exact" if len(rows) < _SMALL else "hist", "seed": self.training.seed * 97 + number,
                    "nthread": 1, "verbosity": 0}
        made = xgboost.train(settings, xgboost.DMatrix(rows, target, weight=weights, nthread=1), self.training.rounds)
        return _Trees(booster=made)


class FamilyModels(CostModel):
    """What a search of an operator with kernels of several families starts from: each family's kernels are predicted by its own
    model, those of the others by the first. It is not trained itself.

    models: family -> its model, at least one.
    """

    def __init__(self, models: Mapping[str, CostModel]) -> None:
        super().__init__()
        self.models = dict(models)

    @property
    def trained(self) -> bool:
        return all(m.trained for m in self.models.values())

    @property
    def samples(self) -> int:
        return sum(m.samples for m in self.models.values())

    def predict_rates(self, space: FeatureSpace, configs: Ints) -> tuple[Floats, Floats]:
        owner = self._owners(space.config_rows)[configs]
        mean, deviation = np.empty(len(configs)), np.empty(len(configs))
        for number, model in enumerate(self.models.values()):
            mine = owner == number
            if mine.any():
                mean[mine], deviation[mine] = model.predict_rates(space, configs[mine])
        return mean, deviation

    def _predict(self, configs: Rows, place: Ints, pairs: Rows, base: Floats) -> tuple[Floats, Floats]:
        owner = self._owners(configs)[place]
        mean, deviation = np.empty(len(base)), np.empty(len(base))
        for number, model in enumerate(self.models.values()):
            mine = owner == number
            if mine.any():
                rows = Rows(pairs.names, pairs.values[mine])
                mean[mine], deviation[mine] = model._predict(configs, place[mine], rows, base[mine])
        return mean, deviation

    def _owners(self, configs: Rows) -> Ints:
        """The number of each configuration's model: only a family's own have values in the columns that are called after it."""
        owner = np.zeros(len(configs.values), np.int64)
        for number, family in enumerate(self.models):
            columns = [i for i, name in enumerate(configs.names) if name.startswith(f"{family}.")]
            owner[~np.isnan(configs.values[:, columns]).all(axis=1)] = number
        return owner

    def _stored(self) -> _Stored:
        return _Stored((), (), 0.0, (), self.samples, families=tuple((f, m._stored()) for f, m in self.models.items()))


class _Trees:
    """Boosted trees: xgboost's own, or their bytes, which are read when they are first run, or sent to another process."""

    def __init__(self, data: bytes = b"", booster: Any = None) -> None:
        self._data, self._booster = data, booster

    @property
    def data(self) -> bytes:
        """As xgboost's binary JSON."""
        return self._data or bytes(self._booster.save_raw("ubj"))

    def run(self, rows: Floats) -> Floats:
        """What they predict of each row."""
        if self._booster is None:
            import xgboost

            self._booster = xgboost.Booster({"nthread": 1})
            self._booster.load_model(bytearray(self._data))
        return np.asarray(self._booster.inplace_predict(rows), np.float64)

    def __reduce__(self) -> tuple[type[_Trees], tuple[bytes]]:
        return _Trees, (self.data,)
