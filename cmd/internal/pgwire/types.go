package pgwire

import (
	"encoding/binary"
	"strconv"
	"strings"
)

// dataType is a PostgreSQL type of parameters and results.
type dataType struct {
	name string // of a result column cast to the type
	oid  uint32
	size int16 // of the binary form; -1: variable
}

var (
	boolType    = &dataType{"bool", 16, 1}
	nameType    = &dataType{"name", 19, 64}
	int8Type    = &dataType{"int8", 20, 8}
	int2Type    = &dataType{"int2", 21, 2}
	int4Type    = &dataType{"int4", 23, 4}
	textType    = &dataType{"text", 25, -1}
	oidType     = &dataType{"oid", 26, 4}
	jsonType    = &dataType{"json", 114, -1}
	unknownType = &dataType{"unknown", 705, -2}
	bpcharType  = &dataType{"bpchar", 1042, -1}
	varcharType = &dataType{"varchar", 1043, -1}
	voidType    = &dataType{"void", 2278, 4}
	jsonbType   = &dataType{"jsonb", 3802, -1}
)

// typesByName are the types that a cast can name.
var typesByName = map[string]*dataType{
	"bool": boolType, "boolean": boolType, "name": nameType, "int8": int8Type, "bigint": int8Type, "int2": int2Type, "smallint": int2Type,
	"int4": int4Type, "int": int4Type, "integer": int4Type, "text": textType, "oid": oidType, "json": jsonType, "bpchar": bpcharType,
	"char": bpcharType, "character": bpcharType, "varchar": varcharType, "jsonb": jsonbType, "unknown": unknownType,
}

var typesByOID = func() map[uint32]*dataType {
	types := map[uint32]*dataType{0: nil} // the client leaves the type to the server
	for _, t := range typesByName {
		types[t.oid] = t
	}
	return types
}()

// value is one value as text; nil is null.
type value *string

func textValue(s string) value { return &s }

func boolValue(b bool) value {
	if b {
		return textValue("t")
	}
	return textValue("f")
}

// decode converts a parameter's bytes to a value.
func (t *dataType) decode(b []byte, format int16) (value, error) {
	if b == nil {
		return nil, nil
	}
	if format == 1 {
		s, ok := t.decodeBinary(b)
		if !ok {
			return nil, errorf(badBinary, "incorrect binary data format for a parameter of type %s", t.name)
		}
		b = []byte(s)
	}
	s := string(b)
	if !isText(s) {
		return nil, errorf(badEncoding, "invalid byte sequence for encoding \"UTF8\" in a parameter").
			hint("Channels and payloads are UTF-8 text without the character 0: encode what is not, for instance as base64.")
	}
	return t.cast(textValue(s))
}

func (t *dataType) decodeBinary(b []byte) (string, bool) {
	switch {
	case t == jsonbType: // a version byte comes first
		return string(b[min(1, len(b)):]), len(b) > 0 && b[0] == 1
	case t == boolType:
		return *boolValue(len(b) == 1 && b[0] != 0), len(b) == 1
	case t.size == 2 && len(b) == 2:
		return strconv.Itoa(int(int16(binary.BigEndian.Uint16(b)))), true
	case t == oidType && len(b) == 4:
		return strconv.FormatUint(uint64(binary.BigEndian.Uint32(b)), 10), true
	case t == int4Type && len(b) == 4:
		return strconv.Itoa(int(int32(binary.BigEndian.Uint32(b)))), true
	case t == int8Type && len(b) == 8:
		return strconv.FormatInt(int64(binary.BigEndian.Uint64(b)), 10), true
	}
	return string(b), t.size < 0 || t == nameType
}

// cast converts a value to the type. The text form stays the same if it is valid for the type.
func (t *dataType) cast(v value) (value, error) {
	if v == nil {
		return nil, nil
	}
	switch t {
	case boolType:
		switch s := strings.TrimSpace(fold(*v)); s {
		case "t", "true", "y", "yes", "on", "1":
			return boolValue(true), nil
		case "f", "false", "n", "no", "off", "0":
			return boolValue(false), nil
		}
	case int2Type, int4Type, int8Type:
		if n, err := strconv.ParseInt(strings.TrimSpace(*v), 10, int(t.size)*8); err == nil {
			return textValue(strconv.FormatInt(n, 10)), nil
		}
	case oidType:
		if n, err := strconv.ParseUint(strings.TrimSpace(*v), 10, 32); err == nil {
			return textValue(strconv.FormatUint(n, 10)), nil
		}
	default:
		return v, nil
	}
	return nil, errorf(badText, "invalid input syntax for type %s: %q", t.name, cut(*v, 64))
}

// encode converts a value to the bytes of a result; nil is null.
func (t *dataType) encode(v value, format int16) []byte {
	if v == nil {
		return nil
	}
	if format == 1 {
		n, _ := strconv.ParseInt(*v, 10, 64)
		switch t {
		case boolType:
			return []byte{map[string]byte{"t": 1}[*v]}
		case int2Type:
			return binary.BigEndian.AppendUint16(nil, uint16(n))
		case int4Type, oidType:
			return binary.BigEndian.AppendUint32(nil, uint32(n))
		case int8Type:
			return binary.BigEndian.AppendUint64(nil, uint64(n))
		case jsonbType:
			return append([]byte{1}, *v...)
		}
	}
	return append([]byte{}, *v...)
}

// cut shortens text for use in a message.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
