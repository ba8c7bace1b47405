"""Every way to train in one arena: same rows, same network, same searches, same judges."""
