"""A page where people see, ask and compare, and the JSON API behind it. Needs the extra
``serve``.
"""
