"""For every Python test."""

import signal

# A test run started in the background inherits an ignored SIGINT; tests of Ctrl-C, and the processes
# that they start, need it as it is in a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)
