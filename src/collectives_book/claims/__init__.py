"""The claims ledger: what the book's sources state in numbers and formulas, and what this library finds."""
