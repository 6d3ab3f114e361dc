"""A worker that logs in all the ways there are in Python, for json_lines_test.py."""

import logging
import warnings

import bandoneon

bandoneon.init()
log = logging.getLogger("bandoneon")
log.info("below the level")
log.warning('mind the "%s"', "gap\nand the next line")
try:
    raise ValueError("odd")
except ValueError:
    log.exception("it failed")
warnings.warn("better not", stacklevel=1)
own = logging.StreamHandler()
own.setFormatter(bandoneon.JsonFormatter("own handler: %(name)s: %(message)s"))
logging.getLogger().addHandler(own)
log.warning("once")
logging.getLogger("of the program").error("by its own logger")
bandoneon.shutdown()
