"""Where independent pieces of work run: ``launch.py`` in processes of this machine,
``ray_engine.py`` on a Ray cluster.
"""
