from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class TableEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TABLE_ENCODING_UNSPECIFIED: _ClassVar[TableEncoding]
    TABLE_ENCODING_FLOAT16: _ClassVar[TableEncoding]
    TABLE_ENCODING_INT8: _ClassVar[TableEncoding]
TABLE_ENCODING_UNSPECIFIED: TableEncoding
TABLE_ENCODING_FLOAT16: TableEncoding
TABLE_ENCODING_INT8: TableEncoding
