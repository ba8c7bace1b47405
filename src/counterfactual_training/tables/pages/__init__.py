"""Pages about a user's own model: the model itself, and an audit of it.

Start with ``model_page.py`` and ``audit_page.py``. ``portrait.py`` has the numbers; ``files.py``
fills ``templates/`` and writes files.
"""
