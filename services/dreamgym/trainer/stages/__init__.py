"""One module for each kind of stage; `run.py` chooses among them."""
