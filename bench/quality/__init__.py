"""Whether the profiles beat the VPA, and by how much: ``python -m bench.quality --traces-dir DIR`` writes docs/quality.md.

Recorded series are replayed through the VPA and the profiles (``vpa_ippr.backtest``), and what came of it is held against targets
(``targets.py``). A series is only ever judged by a model that did not see it: the sources that the shipped model was trained on are
divided into folds, and each fold is judged by a model trained like the shipped one on the others (``training.py``).
"""
