"""What earlier runs measured, kept and used again; nothing of it is believed without proof.

store.py    one SQLite file, one row a finished run: append-only
records.py  what a row holds, and how a configuration is written without the job's own words
keys.py     the same job? (hashes)  an alike job? (numbers, and a distance)
effects.py  what past runs say of each value: a mean and its error
use.py      History: asked once after OBSERVE, told once at the end      <- start here
"""
