"""A worker that ends in a way of its own: python ending_program.py DIRECTORY HOW.

Rank 1 ends by HOW between two exchanges; rank 0 leaves what it heard in DIRECTORY/heard.
"""

import array
import multiprocessing
import os
import pathlib
import sys
import threading

import bandoneon
from bandoneon.calls import Declaration


def framework(status):
    """As hydra and click do: an exception is caught and printed, and sys.exit is called."""
    try:
        raise ValueError("the data is bad")
    except ValueError:
        sys.exit(status)


def console(line):
    """As the consoles of IDEs and pytest do: an exception is remembered, and the program goes on."""
    try:
        exec(line)
    except Exception as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__


def in_a_thread(worker, ends_well_later=False):
    """Trains in a thread, which dies; and then, perhaps, in another."""

    def dies():
        worker.end_step()
        raise ValueError("the data is bad")

    for target in [dies] + [worker.end_step] * ends_well_later:
        thread = threading.Thread(target=target, name="trainer")
        thread.start()
        thread.join()


def train(directory, how):
    worker = bandoneon.init()
    (tensor,) = worker.declare([Declaration("t", 3)])
    values = array.array("f", [worker.rank] * 3)

    def exchange():
        worker.wait(worker.push(tensor, values.buffer_info()[0], keep=values), timeout=60)

    exchange()
    assert list(values) == [0.5] * 3
    worker.barrier()  # Rank 0, too, has the mean before rank 1 ends.
    if worker.rank == 1:
        exec(how)
        return
    try:
        exchange()
    except bandoneon.BandoneonError as error:
        pathlib.Path(directory, "heard").write_text(str(error))
        os._exit(0)  # So that rank 1's ending alone decides how the job is seen.


def of_rank(rank, directory, how):
    os.environ.update(BANDONEON_RANK=str(rank), RANK=str(rank))
    train(directory, how)


def main(directory, how, method=""):
    if not method:
        train(directory, how)
        return
    # As one worker of `bandoneon run` that starts all of the job's itself.
    if method == "torch":
        import torch.multiprocessing

        torch.multiprocessing.spawn(of_rank, (directory, how), nprocs=2)
        return
    context = multiprocessing.get_context(method)
    children = [context.Process(target=of_rank, args=(rank, directory, how)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(child.exitcode for child in children))


if __name__ == "__main__":
    main(*sys.argv[1:])
