"""All methods compared: same rows, same network, same searches, same judges."""
