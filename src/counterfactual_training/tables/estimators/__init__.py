"""The scikit-learn interface: data frames in, decisions and explanations in the user's units
out.
"""
