# made by docs/generate.py from docs/share.py: change that
_CRONLOCKCTL_COMPLETE=fish_source cronlockctl | source
