-- Counts the messages: visible, delayed and leased.
return call('HLEN', body)
