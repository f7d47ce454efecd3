"""The recipe that made the embedded models: data, tokenizer, target, draft, export.

Start at `paceline.zoo.train` (`python -m paceline.zoo.train --help`).
"""
