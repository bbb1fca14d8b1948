"""The first code in Python of a process that runs an image: from here on, imports come from the image alone.

It stands alone: it is imported by zip from a sealed memory file, before there is an ``odp``.
"""

import _imp
import marshal
import posix
import sys
from _frozen_importlib import BuiltinImporter, FrozenImporter, ModuleSpec

_ORIGIN = "image"


class ImageFinder:  # stands alone: without the base class, and so without the types, of a loader
    """A meta path finder and loader of the modules and extensions of an image.

    Args:
        modules: name -> (code as marshal wrote it, whether it is a package).
        extensions: name -> descriptor of the memory file that holds it.
    """

    def __init__(self, modules: dict[str, tuple[bytes, bool]], extensions: dict[str, int]) -> None:
        self._modules, self._extensions = modules, extensions

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The spec of a module of the image; None if it has no such module."""
        if name in self._modules:
            spec = ModuleSpec(name, self, origin=_ORIGIN)  # type: ignore[arg-type]
            if self._modules[name][1]:
                spec.submodule_search_locations = [_ORIGIN]
            return spec
        if name in self._extensions:
            origin = f"/proc/self/fd/{self._extensions[name]}"
            return ModuleSpec(name, self, origin=origin)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> object:
        """The module object of an extension; the usual one of others."""
        return _imp.create_dynamic(spec) if spec.name in self._extensions else None

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        """Runs a module."""
        name = module.__name__ if module.__spec__ is None else module.__spec__.name
        if name in self._extensions:
            _imp.exec_dynamic(module)
        else:
            exec(marshal.loads(self._modules[name][0]), module.__dict__)  # measured code

    def invalidate_caches(self) -> None:
        """An image does not change."""


def read(descriptor: int) -> bytes:
    """A memory file."""
    size, data = posix.fstat(descriptor).st_size, b""
    while len(data) < size:
        data += posix.pread(descriptor, size - len(data), len(data))
    return data


def main(modules: int, extensions: dict[str, int], first: str, arguments: dict[str, object]) -> None:
    """Takes over the imports, and runs ``main`` of the module ``first`` with the arguments and all names."""
    finder = ImageFinder(marshal.loads(read(modules)), extensions)  # measured code
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter, finder]
    sys.path[:] = []
    sys.path_hooks[:] = []
    sys.path_importer_cache.clear()
    sys.modules.pop("linecache", None)  # the one of the start, which the image has whole
    names = [*finder._modules, *extensions]
    __import__(first, fromlist=["main"]).main(names=names, **arguments)
