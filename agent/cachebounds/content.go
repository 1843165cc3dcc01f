package cachebounds

import (
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// maxContentBytes bounds each part of a typed object: its metadata, its owners, and the rest. Those that
	// Kubernetes, CDI and the agent make have a few KiB.
	maxContentBytes = 64 << 10
	// maxTextBytes bounds a text in it: an agent quotes less of a message.
	maxTextBytes = 8 << 10
	// maxTreeBytes bounds a KubeVirt VirtualMachine, which is cached as maps: those of people have some
	// 30 KiB.
	maxTreeBytes = 256 << 10
	// entryBytes is about what an entry of a map or list takes beside its text.
	entryBytes = 64
)

// boundContent cuts texts and lists of an object, a pointer to a struct, in their place, so that each part of it
// takes about maxContentBytes at most. What is beyond is missing or empty.
func boundContent(object any) {
	b := contentBudget{left: maxContentBytes}
	b.bound(reflect.ValueOf(object))
}

type contentBudget struct{ left int }

// Annotations, which anybody writes, use up nothing of an object's owners, finalizers or content.
var (
	metadataType       = reflect.TypeFor[metav1.ObjectMeta]()
	ownersType         = reflect.TypeFor[[]metav1.OwnerReference]()
	finalizersField, _ = metadataType.FieldByName("Finalizers")
)

func (b *contentBudget) bound(v reflect.Value) {
	if of := v.Type(); of == metadataType || of == ownersType {
		b = &contentBudget{left: maxContentBytes}
	}
	switch v.Kind() {
	case reflect.String:
		if limit := max(0, min(maxTextBytes, b.left)); v.Len() > limit && v.CanSet() {
			v.SetString(cut(v.String(), limit))
		}
		b.left -= v.Len()
	case reflect.Pointer:
		if !v.IsNil() {
			b.bound(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			budget := b
			if v.Type() == metadataType && i == finalizersField.Index[0] {
				budget = &contentBudget{left: maxContentBytes}
			}
			if field := v.Field(i); field.CanSet() {
				budget.bound(field)
			}
		}
	case reflect.Slice:
		b.boundSlice(v)
	case reflect.Map:
		b.boundMap(v)
	}
}

func (b *contentBudget) boundSlice(v reflect.Value) {
	itemBytes := int(v.Type().Elem().Size())
	for i := range v.Len() {
		if b.left -= itemBytes; b.left < 0 {
			kept := reflect.MakeSlice(v.Type(), i, i)
			reflect.Copy(kept, v)
			v.Set(kept)
			return
		}
		b.bound(v.Index(i))
	}
}

// boundMap removes entries beyond the budget. Values of a map cannot be cut in their place.
func (b *contentBudget) boundMap(v reflect.Value) {
	if v.Len()*entryBytes > b.left {
		v.SetZero() // a map never gives memory back
		return
	}
	if texts, isText := v.Interface().(map[string]string); isText { // by reflection, each key is an allocation
		for key, value := range texts {
			if b.left -= entryBytes + len(key) + len(value); b.left < 0 {
				delete(texts, key)
			}
		}
		return
	}
	for _, key := range v.MapKeys() {
		value := v.MapIndex(key)
		size := entryBytes
		for _, part := range []reflect.Value{key, value} {
			if part.Kind() == reflect.String {
				size += part.Len()
			}
		}
		if b.left -= size; b.left < 0 {
			v.SetMapIndex(key, reflect.Value{})
		}
	}
}

// trimmedField is of the root of an object, where a CRD stores no fields of others.
const trimmedField = "otTrimmed"

// trimUnstructured drops spec and status of an object that is too large to be cached.
func trimUnstructured(u *unstructured.Unstructured) {
	if treeBytes(u.Object, maxTreeBytes) <= maxTreeBytes {
		return
	}
	metadata := map[string]any{}
	for _, field := range []string{"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "labels"} {
		if value, found, _ := unstructured.NestedFieldNoCopy(u.Object, "metadata", field); found {
			metadata[field] = value
		}
	}
	u.Object = map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "metadata": metadata, trimmedField: true}
}

// IsTrimmed reports whether a cache has only metadata of an object: it is to be read live.
func IsTrimmed(u *unstructured.Unstructured) bool {
	return u != nil && u.Object[trimmedField] == true
}

// treeBytes returns about how much memory a value takes, or some number beyond the limit.
func treeBytes(value any, limit int) (size int) {
	switch value := value.(type) {
	case string:
		return len(value)
	case map[string]any:
		for key, item := range value {
			if size += entryBytes + len(key) + treeBytes(item, limit-size); size > limit {
				return size
			}
		}
	case []any:
		for _, item := range value {
			if size += entryBytes + treeBytes(item, limit-size); size > limit {
				return size
			}
		}
	}
	return size
}
