package capacity

import storagev1 "k8s.io/api/storage/v1"

// Annotations that make a StorageClass the default, in the order in which CDI 1.65 looks
// for them.
const (
	AnnotationDefaultVirtClass = "storageclass.kubevirt.io/is-default-virt-class"
	AnnotationDefaultClass     = "storageclass.kubernetes.io/is-default-class"
)

// DefaultStorageClass returns the class that CDI uses where none is named; empty for none. Of
// several the youngest wins, as in Kubernetes.
func DefaultStorageClass(classes []storagev1.StorageClass) string {
	for _, annotation := range []string{AnnotationDefaultVirtClass, AnnotationDefaultClass} {
		var found *storagev1.StorageClass
		for i := range classes {
			class := &classes[i]
			if class.Annotations[annotation] == "true" && (found == nil || isYounger(class, found)) {
				found = class
			}
		}
		if found != nil {
			return found.Name
		}
	}
	return ""
}

func isYounger(a, b *storagev1.StorageClass) bool {
	if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
		return order > 0
	}
	return a.Name < b.Name
}
