"""What reads from Kafka, as three packages that know nothing of each other.

- `reorder`: the rules of the reorder job. The job itself is `sequitur.pipelines`.
- `topology`: bolts and acker-tracked processing, with and without transactions.
- `subscription`: cursors, acknowledgements, backlog and retention. Its public names are in
  `sequitur.subscription`.
"""
