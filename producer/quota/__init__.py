"""Backlog quotas, as producers keep them: the control topic, and sends that wait or are refused.

Called by the client; whoever checks quotas writes the records of `control`. Its errors are in
`producer._errors`.
"""
