"""Object stores behind one small port, and `HeapStore`, which opens one by URL and proves that it keeps its promises."""

from s3heap_tender.stores.opening import HeapStore
from s3heap_tender.stores.port import Listed, NotModified, ObjectStore, StoredObject

__all__ = ["HeapStore", "Listed", "NotModified", "ObjectStore", "StoredObject"]
