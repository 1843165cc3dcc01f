package image

import "github.com/pelotech/ot-fleet/api/v1alpha1"

// DigestOfDataSource is the digest of the labels that the agent applies for an image.
func DigestOfDataSource(img *v1alpha1.VMDiskImage) string {
	d := &decider{View: View{Image: img}}
	return d.buildDataSource(&v1alpha1.Publication{}).Annotations[v1alpha1.AnnotationAppliedDigest]
}
