"""Tables, figures and pages of results. ``write_…`` writes the files that a command of ``ct``
writes.
"""
