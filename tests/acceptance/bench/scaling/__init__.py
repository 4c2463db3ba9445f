"""`make scaling`: how cost grows with one thing at a time, and what that comes to on paper."""
