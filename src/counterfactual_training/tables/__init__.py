"""People with a DataFrame: columns and their rules, advice, estimators, audits, export."""
