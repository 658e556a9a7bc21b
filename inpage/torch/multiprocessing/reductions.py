"Weak references to memory."
import weakref


class StorageWeakRef:
    "Tells whether the memory is still there."
    def __init__(self, storage):
        self.ref, self.key = weakref.ref(storage.array), id(storage.array)

    def expired(self) -> bool: return self.ref() is None
    def __hash__(self): return self.key
    def __eq__(self, other): return self.key == other.key
