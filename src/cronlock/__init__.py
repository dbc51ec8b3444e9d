"""cronlock: put it before a crontab command, and the job runs on one server at a time."""

__version__ = "0.1.0"
