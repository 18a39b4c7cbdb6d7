"""Label files that no picture has: beside pictures without a label, a sign that names differ where they should not."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from libreyolo.data.counterparts import composed, folder_and_stem, label_paths, text_files
from libreyolo.data.dataset_yaml import SPLITS, DatasetYaml
from libreyolo.data.sources import list_pictures
from libreyolo.errors import UserError


def stray_labels(pictures: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the text files that look like labels and belong to none of these pictures, sorted.

    labels: where the label of each picture is looked for. Strays are the other files of those folders, and those that lie beside a picture whose
    label is looked for elsewhere.
    """
    used = set(labels)
    stems: dict[str, set[str]] = defaultdict(set)
    for folder, stem in map(folder_and_stem, pictures):
        stems[folder].add(composed(stem))
    places = set(map(os.path.dirname, labels))
    found = []
    for folder in sorted(places | stems.keys()):
        for name in text_files(folder):
            path = os.path.join(folder, name)  # noqa: PTH118 - a million times
            if path not in used and (folder in places or composed(folder_and_stem(name)[1]) in stems[folder]):
                found.append(path)
    return found


def stray_note(description: DatasetYaml, pictures: Sequence[str], splits: Collection[str]) -> str:
    """Return what is to be said of the pictures of `splits` (all that are to have label files) that have none while label files have no picture; ""
    where both can't belong together, or where the pictures of the other splits, whose files these may be, can't be listed."""
    labels = label_paths(pictures)
    num_missing = sum(not Path(label).exists() for label in labels)
    strays = stray_labels(pictures, labels) if num_missing else []
    if strays:
        try:
            others = [picture for split in SPLITS if split not in splits for picture in list_pictures(description, split).pictures]
        except UserError:  # told when those pictures are asked for
            return ""
        strays = sorted(set(strays) - set(label_paths(others)))
    if not strays:
        return ""
    found = f"pictures without a label file: {num_missing}, label files without a picture: {len(strays)} (for example {strays[0]})"
    return f"{found}; a label must have its picture's name"
