"""The command, ready to be started."""

import shutil

import pytest
from command_helpers import BIN, SCHEDULER, SERVER, Command, write_program


@pytest.fixture
def real(tmp_path):
    """The command among the real daemons."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = Command(BIN, temporary)
    yield command
    for process in command.started:
        process.kill()
        process.communicate()


@pytest.fixture
def staged(tmp_path):
    """The command among stand-ins for the daemons, which start at once and do nothing."""
    folder, temporary = tmp_path / "bin", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    shutil.copy(BIN / "bandoneon", folder)
    write_program(folder / "bandoneon-scheduler", SCHEDULER)
    write_program(folder / "bandoneon-server", SERVER)
    command = Command(folder, temporary)
    yield command
    for process in command.started:
        process.kill()
        process.communicate()
