"""data.yaml -> names and where the pictures are said to be.

Rules:

- `data` is a yaml file, such a file's name without .yaml, a folder that holds data.yaml or dataset.yaml, or a built-in name (BUILT_IN); a
  relative one is looked for in the launch directory, and the user's own files come before the built-in name.
- `path` is the root of the set: absent, empty or `~` alone (YAML's null) means the yaml's folder; a relative one is relative to the yaml's
  folder; "~/sets" is the home folder.
- `train`, `val`, `test`: a folder, a .txt list, a picture, a glob, or a list of those. `valid` is read as `val` where `val` is not given.
- A relative source is looked for below `path`, then below the yaml's folder; `../x` also as `x` below the yaml's folder, because a well
  known exporter writes it so. Backslashes are read as slashes. Where nothing is found, white space around it means nothing.
- `names` is a list or a mapping from class id to name; a hole in a mapping becomes class_i with a warning. `nc` may be left out. Spaces around a
  name mean nothing; one that holds control characters is refused, since names end up on terminals, in tables and in files.
- `annotations: {train: x.json, val: y.json}` gives a split's boxes as COCO json instead of label files (coco_labels.py says how); the files are
  looked for like sources.
- `kpt_shape: [K, D]` says that label rows may carry K points of D numbers after the box, as pose sets do; a detector takes the box.
- Every scalar is text as written: a class called `no` or `on` is no boolean, and one called `007` keeps its zeros.
- Where one split only is read, to judge a model, `train` need not be there, and what is wrong with the other splits is not looked at.
- Keys that are not listed here mean nothing. Nothing is ever downloaded.
"""

from __future__ import annotations

import logging
import os
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from libreyolo.data.semantic_shapes import built_in_semantic_shapes
from libreyolo.data.shapes import built_in_shapes
from libreyolo.data.shapes_restore import built_in_shapes_restore
from libreyolo.errors import UserError, nearest, printable

logger = logging.getLogger(__name__)

_SHOWN = reprlib.Repr()
_SHOWN.maxstring, _SHOWN.maxother, _SHOWN.maxlist, _SHOWN.maxdict, _SHOWN.maxlevel = 120, 120, 4, 4, 2

BUILT_IN: Mapping[str, Callable[[], Path]] = {
    "shapes": built_in_shapes,
    "shapes-restore": built_in_shapes_restore,
    "shapes-semantic": built_in_semantic_shapes,
}
SPLITS = ("train", "val", "test")
_FILE_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
MAX_BYTES = 4 << 20  # a description of 20,000 classes has half a megabyte; PyYAML reads about a megabyte a second
MAX_CLASSES = 100_000
_MAX_MERGED = 100_000  # entries of one mapping: merge keys of merge keys would multiply without end


@dataclass(frozen=True)
class DatasetYaml:
    """A data.yaml, read and checked; no picture has been looked for yet.

    path: the absolute file. root: the absolute folder its sources are relative to. names: every id 0..nc-1; {} where the task has no classes.
    sources: split -> what the yaml says, one entry or more; () for a split that is absent or null.
    has_download: the yaml has a `download` key, which is not followed.
    annotations: split -> the absolute COCO json with its boxes; splits with label files are not in it.
    keypoint_numbers: how many numbers may follow the box in a label row, from `kpt_shape`; 0 where there is none.
    content: the whole mapping, every scalar as the text it is; a task reads its own keys in it.
    """

    path: Path
    root: Path
    names: dict[int, str]
    sources: dict[str, tuple[str, ...]]
    has_download: bool
    content: Mapping[str, Any] = field(default_factory=dict)
    annotations: dict[str, Path] = field(default_factory=dict)
    keypoint_numbers: int = 0

    @property
    def nc(self) -> int:
        return len(self.names)


def absolute(path: str | Path, base: Path) -> Path:
    """Return `path` (with ~ expanded) below `base` if it is relative, `..` taken out of the text and links left as they are.

    Raises UserError for text that can name no file.
    """
    try:
        expanded = Path(path).expanduser()
        if b"\0" in os.fsencode(expanded):
            raise ValueError("it holds a NUL character")
    except (RuntimeError, ValueError) as error:  # RuntimeError: the home folder of a user who is not there
        raise UserError(f"{shown(str(path))} is no path ({error}); correct it.") from error
    return Path(os.path.abspath(base / expanded))  # noqa: PTH100 - resolve() would follow links and lose an `images` folder


def is_absolute(text: str) -> bool:
    """Whether text (with slashes) begins at a root, of this system or another: a folder's name can't."""
    return text.startswith(("/", "~")) or re.match(r"[A-Za-z]:", text) is not None


def exists(path: Path) -> bool:
    """Whether there is a file or folder; False also for a name that is too long. Raises UserError where permissions hide the answer."""
    try:
        path.stat()
    except PermissionError as error:
        raise UserError(f"{path} cannot be reached ({error.strerror}); correct the permissions of its folders.") from error
    except OSError:
        return False
    return True


def shown(value: Any) -> str:
    """Return a value as an error shows it: short, whatever its size or depth."""
    return _SHOWN.repr(value)


def find_yaml(data: str | Path, cwd: Path) -> Path:
    """Return the absolute path of the data.yaml that `data` means; see the rules above. Raises UserError with every place tried."""
    if not isinstance(data, (str, Path)) or not str(data).strip():
        raise UserError(
            f"data={data!r} is no data set: give the path of a data.yaml, a folder that holds one, or a built-in name: {', '.join(BUILT_IN)}."
        )
    place = absolute(data, cwd)
    tried = [place, *(place.with_name(place.name + suffix) for suffix in (".yaml", ".yml"))]
    if exists(place) and place.is_dir():
        tried = [*tried[1:], *(place / name for name in _FILE_NAMES)]
    for candidate in tried:
        if exists(candidate) and candidate.is_file():
            return candidate
    if str(data) in BUILT_IN:
        return BUILT_IN[str(data)]()
    places = ", ".join(str(candidate) for candidate in tried)
    if not place.is_dir():
        raise UserError(f"data={str(data)!r} was not found (tried {places}); give an existing data.yaml.{nearest(str(data), BUILT_IN)}")
    has_classes = (place / "train").is_dir() and not (place / "train" / "images").exists()
    hint = " Folders of classes are a classifier's (check: --task classify)." if has_classes else ""
    raise UserError(f"data={str(data)!r} is a folder that holds no data.yaml (tried {places}); give an existing data.yaml.{hint}")


def read_yaml(path: Path, *, with_classes: bool = True, only: str | None = None) -> DatasetYaml:
    """Read the data.yaml at the absolute `path`. Raises UserError, with the line where there is one, for anything that breaks the rules.

    with_classes: whether the task has classes; where not, `names`, `nc` and what goes with boxes are not looked at. only: the one split that is asked
    for; what is wrong with the others is not told, and `train` is not needed.
    """
    content = _mapping(path)
    folder = path.parent
    root_text = content.get("path") or "."
    if not isinstance(root_text, str):
        raise UserError(f"{path}: path must be one folder, not {shown(root_text)}.")
    sources = {split: _sources(path, content, split, needed=only in (None, split)) for split in SPLITS}
    if not sources["val"]:
        sources["val"] = _sources(path, content, "valid", needed=only in (None, "val"))
    if not sources["train"] and only is None:
        coco = " beside names: and annotations:, for this is a COCO file and no data.yaml" if "images" in content and "annotations" in content else ""
        raise UserError(f"{path}: {_lacks('train', content, 'the training pictures')}; add it{coco or _misspelt('train', content)}.")
    root = absolute(_slashes(root_text), folder)
    found = DatasetYaml(path, root, {}, sources, "download" in content, content)
    if not with_classes:
        return found
    names, annotations = _names(path, content), _annotations(found, content, only)
    return replace(found, names=names, annotations=annotations, keypoint_numbers=_keypoint_numbers(path, content))


def candidates(source: str, description: DatasetYaml) -> list[Path]:
    """Return the absolute places where a source of the yaml may be, in the order they are tried; as written, then without white space around it."""
    folder = description.path.parent
    places = []
    for text in dict.fromkeys((_slashes(source), _slashes(source).strip())):
        places += [absolute(text, description.root), absolute(text, folder)]
        if text.startswith("../"):
            places.append(absolute(text[3:], folder))
    return list(dict.fromkeys(places))


class _TextLoader(yaml.SafeLoader):
    """Scalars stay text, null apart; a repeated key is an error instead of a silent overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} stands there twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MAX_MERGED:
            raise yaml.constructor.ConstructorError(None, None, f"a mapping has more than {_MAX_MERGED} entries", node.start_mark)


_TextLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _mapping(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UserError(f"{path} has {size} bytes, which is no data set description (at most {MAX_BYTES}); name the data.yaml.")
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    try:
        content = yaml.load(raw.decode("utf-8-sig"), _TextLoader)  # a SafeLoader with fewer types
    except UnicodeDecodeError as error:
        if b"\0" in raw and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):  # text as UTF-16 has such bytes too
            raise UserError(f"{path} is no text, so no data set description; give the data.yaml (of an archive, after unpacking it).") from error
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: the file is not UTF-8 text; save it as UTF-8.") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(str(error.problem or error.context).split())
        hint = "; indent with spaces, not tabs" if "\\t" in problem else ""
        raise UserError(f"{path}:{line}: this is not valid YAML: {problem}{hint}.") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}:1: this is not valid YAML: {' '.join(str(error).split())}.") from error
    except RecursionError as error:
        raise UserError(f"{path}: this is not a data set description: it is nested too deeply.") from error
    except Exception as error:  # the constructors of explicit tags (`!!int x`, `!!timestamp`) raise whatever their parsing raises
        raise UserError(f"{path}: a value does not fit its !! tag ({type(error).__name__}: {error}); remove the tag.") from error
    if content is None:
        raise UserError(f"{path}:1: the file is empty; it must name train: and names: at least.")
    if not isinstance(content, dict):
        raise UserError(f"{path}:1: a data set description is a mapping (train: ..., names: ...), not a {type(content).__name__}.")
    return content


def _sources(path: Path, content: dict[str, Any], split: str, *, needed: bool) -> tuple[str, ...]:
    value = content.get(split)
    entries = value if isinstance(value, list) else [value]
    for entry in entries:
        if entry is not None and not isinstance(entry, str):
            if not needed:
                return ()
            raise UserError(f"{path}: {split}: takes a folder, a .txt list, a glob, or a list of those, not {shown(entry)}.")
    return tuple(entry for entry in entries if entry)


def _names(path: Path, content: dict[str, Any]) -> dict[int, str]:
    names, nc = content.get("names"), None
    if content.get("nc") is not None:
        nc = _integer(path, "nc", content["nc"])
        if nc < 1:
            raise UserError(f"{path}: nc={nc}, but there must be at least one class.")
    if names is None and nc is None:
        hint = " (class ids follow its order; each name is a category's)" if "annotations" in content else _misspelt("names", content)
        raise UserError(f"{path}: {_lacks('names', content, 'the names of the classes')}; add it{hint}.")
    if isinstance(names, list):
        known = {index: name for index, name in enumerate(names) if name is not None}
        length = len(names)
    elif isinstance(names, dict):
        known = {_integer(path, "a key of names", key): name for key, name in names.items()}
        if len(known) < len(names):
            raise UserError(f"{path}: names has two entries for one class id (0 and 00, say); remove one.")
        length = max(known, default=-1) + 1
    elif names is None:
        known, length = {}, nc or 0
    else:
        raise UserError(f"{path}: names must be a list or a mapping from class id to name, not {shown(names)}.")
    outside = [key for key in known if key < 0 or (nc is not None and key >= nc)]
    if outside:
        raise UserError(f"{path}: names has the class id {outside[0]}, outside 0..{(nc if nc is not None else length) - 1}; correct it or nc.")
    if length == 0:
        raise UserError(f"{path}: names is empty; name at least one class.")
    if length > MAX_CLASSES:
        raise UserError(f"{path}: names and nc say {length} classes, more than the {MAX_CLASSES} that are possible; correct the class ids.")
    if nc is not None and nc != length:
        raise UserError(f"{path}: nc={nc} but names holds {length} classes; make them agree or remove nc.")
    texts = {key: _name(path, key, name) for key, name in known.items() if name is not None}
    _warn_of_repeats(path, texts)
    return _filled(path, {key: text for key, text in texts.items() if text}, length)


def _name(path: Path, key: int, name: Any) -> str:
    if isinstance(name, (list, dict, set, tuple, bytes)):
        raise UserError(f"{path}: the name of class {key} must be a text, not {shown(name)}.")
    text = str(name).strip()
    if printable(text) != text:
        raise UserError(f"{path}: the name of class {key} holds a control character ({shown(text)}); remove it.")
    return text


def _warn_of_repeats(path: Path, names: dict[int, str]) -> None:
    first: dict[str, int] = {}
    for key, name in names.items():
        if name and first.setdefault(name, key) != key:
            logger.warning("%s: classes %d and %d are both called %r; they stay two classes.", path, first[name], key, name)


def _filled(path: Path, known: dict[int, str], nc: int) -> dict[int, str]:
    missing = [key for key in range(nc) if key not in known]
    if missing:
        listed = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        logger.warning("%s: names has no entry for class id %s; using class_%d and so on.", path, listed, missing[0])
    return {key: known.get(key, f"class_{key}") for key in range(nc)}


def _lacks(key: str, content: dict[str, Any], what: str) -> str:
    return f"{key}: is empty, it must hold {what}" if key in content else f"there is no {key}: key with {what}"


def _misspelt(key: str, content: dict[str, Any]) -> str:
    found = get_close_matches(key, [str(other) for other in content], n=1, cutoff=0.6) if key not in content else []
    return f" (is {found[0]!r} a misspelling of it?)" if found else ""


def _integer(path: Path, what: str, value: Any) -> int:
    text = str(value) if isinstance(value, (str, int)) else ""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise UserError(f"{path}: {what} must be an integer, not {shown(value)}.")
    return int(text)


def _annotations(description: DatasetYaml, content: dict[str, Any], only: str | None) -> dict[str, Path]:
    given, path = content.get("annotations"), description.path
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(value is None or isinstance(value, str) for value in given.values()):
        raise UserError(f"{path}: annotations: takes a json file for each split, {{train: x.json, val: y.json}}, not {shown(given)}.")
    files = {"val" if split == "valid" else str(split): file for split, file in given.items() if file}
    for split in files:
        if split not in SPLITS:
            raise UserError(f"{path}: annotations: knows the splits {', '.join(SPLITS)}, not {shown(split)}.")
        if only in (None, split) and not description.sources[split]:
            raise UserError(f"{path}: annotations: has a file for {split}, but there is no {split}: key with its pictures; add it.")
    found = {}
    for split, file in files.items():
        if only not in (None, split):
            continue
        places = candidates(file, description)
        place = next((place for place in places if exists(place)), None)
        if place is None:
            raise UserError(f"{path}: annotations: {file!r} was not found (tried {', '.join(map(str, places))}); correct it.")
        found[split] = place
    return found


def _keypoint_numbers(path: Path, content: dict[str, Any]) -> int:
    """Return K * D of `kpt_shape: [K, D]`, 0 where it is absent."""
    given = content.get("kpt_shape")
    if given is None:
        return 0
    if not isinstance(given, list) or len(given) != 2:
        raise UserError(f"{path}: kpt_shape must be [number of points, 2 or 3], not {shown(given)}.")
    points, dimensions = (_integer(path, "kpt_shape", value) for value in given)
    if not 1 <= points <= 10_000 or dimensions not in (2, 3):
        raise UserError(f"{path}: kpt_shape must be [number of points, 2 or 3], not {shown(given)}.")
    return points * dimensions


def _slashes(text: str) -> str:
    return text.replace("\\", "/")
