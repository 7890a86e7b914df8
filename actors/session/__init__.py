"""State that is changed by events alone, one after another on one actor, and the journal that keeps them.

What was answered is in the journal, and what is in the journal is read again as it was written.
"""
