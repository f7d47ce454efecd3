"""The load generator of `paceline bench serve`: any OpenAI-compatible server, measured over HTTP from outside.

`settings` checks the options, `server` queries the server, `prompts` and `arrivals` make requests and their due times, `client`
sends one and records when its text arrives, `drive` sends many, `measures` turns outcomes into numbers, `level` measures one
load, `sweep` several, `rate_search` searches for the highest rate. `table`, `plots` and `files` show and store the record of a
run, `failures` lists the requests that were not answered.
"""
