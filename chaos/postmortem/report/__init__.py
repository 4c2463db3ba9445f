"""What a person reads of a post-mortem: summary.json, report.html, some lines on the terminal."""
