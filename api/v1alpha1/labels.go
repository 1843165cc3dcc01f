package v1alpha1

const (
	// LabelImageUID stands on every DataVolume, PersistentVolumeClaim, importer
	// Pod and VolumeSnapshot made for a VMDiskImage; its value is the image's
	// UID. Children are found by it alone: a name can be used again and can be
	// longer than a label may be, a UID neither. CDI 1.65 copies a DataVolume's
	// labels to its claims and importer Pods.
	LabelImageUID = "pelotech.ot/image-uid"
	// LabelRevision is the revision of the image that a child belongs to.
	LabelRevision = "pelotech.ot/revision"
	// LabelAttempt is the attempt that a child belongs to, a decimal number.
	LabelAttempt = "pelotech.ot/attempt"

	// AnnotationImageName is the name of the VMDiskImage a child belongs to, for
	// people: names may be longer than a label's value.
	AnnotationImageName = "pelotech.ot/image-name"
	// AnnotationRetry starts a VMDiskImage over whenever its value changes: the
	// retries and the resyncs it has used are forgotten.
	AnnotationRetry = "pelotech.ot/retry"

	// FinalizerImage keeps a VMDiskImage until nothing of it runs or is stored.
	FinalizerImage = "pelotech.ot/teardown"
)
