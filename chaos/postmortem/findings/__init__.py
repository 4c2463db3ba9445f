"""The catalogue of anomalies, and the rules that find them in the tables."""
