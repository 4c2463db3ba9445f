"""Consensus: PySyncObj as a part, made safe, and driven by one loop."""
