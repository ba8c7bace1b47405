"""What measures the library, again after every change: its speed as ratios measured in one run
(``make bench`` runs all and writes ``results/benchmarks.md``), advice as people get it, the laws of
advice and rules, and the server. Studies that were made once are in ``lab/``.
"""
