"""What wants to know of each step of any of torch's optimizers."""

import os
import threading
import weakref

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_lock = threading.RLock()  # A collection of garbage may call leave() in the midst of follow().
_followers = ()  # Weak references. It is replaced as a whole, so that a step in another thread goes on over its own.
_is_hooked = False


def follow(follower):
    """From now on calls follower.before_any_step(optimizer) and follower.after_any_step(optimizer), in the thread that
    steps, until leave() or until nobody else has the follower."""
    global _followers, _is_hooked
    with _lock:
        _followers = (*(one for one in _followers if one() is not None), weakref.ref(follower))
        if not _is_hooked:
            # Once and for good: torch calls its hooks straight from the dictionary that registering and removing
            # change, so either would end the step of another thread in an error.
            register_optimizer_step_pre_hook(_before)
            register_optimizer_step_post_hook(_after)
            _is_hooked = True


def leave(follower):
    """Ends follow(). What was not followed is none of its business."""
    global _followers
    with _lock:
        _followers = tuple(one for one in _followers if one() not in (None, follower))


def _before(optimizer, args, kwargs):
    for one in _followers:
        follower = one()
        if follower is not None:
            follower.before_any_step(optimizer)


def _after(optimizer, args, kwargs):
    for one in _followers:
        follower = one()
        if follower is not None:
            follower.after_any_step(optimizer)


_before.looks_at_no_gradients = _after.looks_at_no_gradients = True


def _after_fork():
    """A child whose parent held the lock in another thread must not wait for it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
