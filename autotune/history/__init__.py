"""What earlier runs measured, stored and used again; nothing of it is believed without proof.

store.py    one SQLite file, one row per finished run: append-only
records.py  what a row holds, and how a configuration is stored without the job's own words
keys.py     the same job? (hashes)  a similar job? (numbers, and a distance)
effects.py  what past runs say about each value: a mean and its error
use.py      History: read once after OBSERVE, written once at the end      <- start here
"""
