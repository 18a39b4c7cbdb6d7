"""The loss of resnet: cross-entropy, as of every classifier."""

from libreyolo.nn.classification import ClassificationLoss

build = ClassificationLoss
