"""Consensus: PySyncObj as a part, made safe, driven in rounds."""
