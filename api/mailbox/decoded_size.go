package mailbox

import (
	"reflect"
	"time"
)

// DecodedBytes returns how much memory a decoded object takes.
func DecodedBytes(o any) int64 {
	v := reflect.ValueOf(o)
	if !v.IsValid() {
		return 0
	}
	return int64(v.Type().Size()) + referencedBytes(v)
}

// mapEntryOverhead is about what a map takes per entry beside key and value.
const mapEntryOverhead = 32

// referencedBytes returns what a value references beyond its own size.
func referencedBytes(v reflect.Value) (total int64) {
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return int64(v.Elem().Type().Size()) + referencedBytes(v.Elem())
		}
	case reflect.Slice:
		total = int64(v.Cap()) * int64(v.Type().Elem().Size())
		if !hasReferences(v.Type().Elem()) {
			return total
		}
		for i := range v.Len() {
			total += referencedBytes(v.Index(i))
		}
	case reflect.Map:
		entry := int64(v.Type().Key().Size()) + int64(v.Type().Elem().Size()) + mapEntryOverhead
		for entries := v.MapRange(); entries.Next(); {
			total += entry + referencedBytes(entries.Key()) + referencedBytes(entries.Value())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return 0 // its time zone is shared
		}
		for i := range v.NumField() {
			total += referencedBytes(v.Field(i))
		}
	}
	return total
}

// hasReferences is false for numbers, of which there may be many.
func hasReferences(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map, reflect.Struct, reflect.Array:
		return true
	}
	return false
}
