"""What the command and the page share.

They open what a url names, look at the limits there, and steer them.
"""


class BadRequest(ValueError):
    """What was asked for makes no sense: wrong usage of a command, status 400 of the page."""
