"""What runs, builds and checks the project; nothing here is installed.

- ``pages.py`` runs the code blocks of a page and pastes what they print and draw, with
  ``markdown.py`` (blocks), ``outputs.py`` (comparison) and ``commands.py`` (shell commands).
- ``reference.py`` writes the pages of names, commands, settings and rules from the code, with
  ``names.py`` (where each public name is described), ``settings.py`` and ``roles.py`` (links in
  docstrings).
- ``notebooks.py`` writes tutorials as notebooks.
- ``site.py`` builds the site with Zensical and follows every link.
- ``mutants.py`` runs the wrong versions of the code in ``mutants.toml``, each with the tests that
  should notice it, in forks of one process.
- ``golden.py`` compares predictions, advice, HTTP answers and a quick reproduction with golden
  files.
- ``random_tables.py`` makes random tables and rules, for golden files and the laws of advice.
- ``screenshots.py`` takes a picture of every panel of ``ct serve``.
- ``measure_code.py`` counts what a reader has to hold in mind: frames, lines of one epoch, modules
  of one cell, names defined twice, style.
"""
