"""Pages about a user's own model: the model itself, and an audit of it."""
