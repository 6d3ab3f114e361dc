"""Parameters that came into a model after its optimizer was made."""

import weakref

from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)


class LateParameters:
    """The parameters of one model that are not among its Names. torch says when a module or a parameter is given to a
    module; only then is the model looked through. Does not keep the model alive."""

    def __init__(self, model, names):
        self._model = weakref.ref(model)
        self._names = names
        self._ids = {id(module) for module in model.modules()}
        self._is_changed = False
        self._found = []
        itself = weakref.ref(self)

        def note(module, name, value):
            late = itself()
            if late is not None and id(module) in late._ids:
                late._is_changed = True

        for register in (register_module_module_registration_hook, register_module_parameter_registration_hook):
            weakref.finalize(self, register(note).remove).atexit = False

    def named(self):
        """(name, parameter) of each."""
        if self._is_changed:
            self._is_changed = False
            model = self._model()
            if model is not None:
                self._ids = {id(module) for module in model.modules()}
                self._found = self._names.missing_of(model.named_parameters())
        return self._found
