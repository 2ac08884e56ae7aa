"""`autotune judge A B`: is B faster, slower or the same, and does it train the same way?

sides ──▶ refused? ──▶ pairs of fresh processes ──▶ speed ──▶ loss ──▶ explanation ──▶ Judgement
"""
