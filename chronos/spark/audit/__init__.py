"""The audit: the outcome of every message that was due in a window, as far as the archive proves
it.

    job                 the audit as a whole, and the search for messages
    coverage            how far the archive holds each topic, and which messages are proved settled
    outcomes            what was promised, what was delivered, and the judgement
    events, timeline    the messages that records or decisions changed
    hops                forwarded records compared with their sources
    summary, report     the counts, and the HTML page
"""
