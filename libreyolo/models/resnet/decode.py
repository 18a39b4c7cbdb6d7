"""From resnet's logits to probabilities, as of every classifier."""

from libreyolo.nn.classification import probabilities

classify = probabilities
