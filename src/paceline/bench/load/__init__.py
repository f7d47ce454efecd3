"""The load generator of `paceline bench serve`: any OpenAI-compatible server, measured over HTTP from outside.

`settings` checks what was asked, `server` finds out about the server, `prompts` and `arrivals` make requests and say when they
are due, `client` sends one and notes when its text came, `drive` sends many, `measures` turns what came into numbers, `level`
measures one load, `sweep` several, `rate_search` looks for the highest rate. `table`, `plots` and `files` show the record of a
run, `failures` says what was not answered.
"""
