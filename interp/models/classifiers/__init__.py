"""Classifiers with one layer of attention over what an encoder makes of a text (Jain & Wallace 2019).

config.py      sizes and kinds
batches.py     texts of different lengths side by side
encoders.py    BiLSTM, convolutions, one word at a time
attention.py   additive and dot-product attention over the words of a text
classifier.py  the whole: encode, attend, answer; and the few numbers per word that the answer depends on
training.py    training as published, with the best epoch kept
storage.py     as a folder: config.json, model.safetensors
"""

from interp.models.classifiers.batches import Batch, Examples
from interp.models.classifiers.classifier import AttentionClassifier, Encoded, as_distribution
from interp.models.classifiers.config import ClassifierConfig
from interp.models.classifiers.storage import load_classifier, save_classifier
from interp.models.classifiers.training import ClassifierTraining, auc_of, train_classifier

__all__ = [
    "AttentionClassifier",
    "Batch",
    "ClassifierConfig",
    "ClassifierTraining",
    "Encoded",
    "Examples",
    "as_distribution",
    "auc_of",
    "load_classifier",
    "save_classifier",
    "train_classifier",
]
