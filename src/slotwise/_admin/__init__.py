"""What the command and the page share.

They open what a url names, look at the limits there, and steer them.
"""
