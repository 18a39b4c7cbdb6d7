"""The splits of a data.yaml, each read when it is first asked for: who judges a model on one of them needs no other."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Generic, TypeVar

from libreyolo.data.dataset_yaml import DatasetYaml
from libreyolo.data.sources import Listing, list_pictures
from libreyolo.errors import UserError

logger = logging.getLogger(__name__)

TRAINED_ON = ("train", "val")  # what a training reads
S = TypeVar("S")


def splits_read(only: str | None) -> tuple[str, ...]:
    """Return the splits that are read when a set is loaded: a training's, or `only` the one."""
    return TRAINED_ON if only is None else (only,)


class YamlSplits(ABC, Generic[S]):
    """Base of what a task reads of a data.yaml. `val` and `test` are None where the set has no such pictures; `train` raises UserError there.

    listings: the pictures of splits that are listed already and not yet scanned.
    """

    description: DatasetYaml
    listings: dict[str, Listing]

    @abstractmethod
    def scanned(self, listing: Listing, split: str) -> S | None:
        """Scan a split; None where it names no picture at all."""

    def look_at_training(self, train: S) -> None:
        """Warn of what a training could not learn from."""

    @cached_property
    def train(self) -> S:
        listing = self._listing("train")
        train = self.scanned(listing, "train")
        if train is None:
            unread = listing.unread_note()
            raise UserError(f"{self.description.path}: train: holds no picture{' (' + unread + ')' if unread else ''}; correct it.")
        self.look_at_training(train)
        return train

    @cached_property
    def val(self) -> S | None:
        val = self.scanned(self._listing("val"), "val")
        if val is None:
            logger.warning("%s: there are no val: pictures, so nothing is validated.", self.description.path)
        return val

    @cached_property
    def test(self) -> S | None:
        return self.scanned(self._listing("test"), "test")

    def read(self, splits: Iterable[str]) -> None:
        """Read these splits now."""
        for split in splits:
            getattr(self, split)

    def _listing(self, split: str) -> Listing:
        listed = self.listings.pop(split, None)  # a million paths are not kept
        return list_pictures(self.description, split) if listed is None else listed
