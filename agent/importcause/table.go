package importcause

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Layer is where a signal was read.
type Layer string

// Layers, from the one that knows most about an import.
const (
	LayerContainer  Layer = "container of the importer Pod"
	LayerPod        Layer = "importer Pod"
	LayerRunning    Layer = "DataVolume, condition Running"
	LayerBound      Layer = "DataVolume, condition Bound"
	LayerEvent      Layer = "latest event of a claim"
	LayerDataVolume Layer = "DataVolume, other conditions"
	LayerClaim      Layer = "PersistentVolumeClaim"
	LayerSnapshot   Layer = "VolumeSnapshot"
	LayerAnswer     Layer = "answer of the API server"
)

// Cause is what holds an image up.
type Cause struct {
	Reason  v1alpha1.Reason
	Message string
	// NeedsPerson: it does not end by itself.
	NeedsPerson bool
	// Passing: a step of every import, which holds it up only if it lasts.
	Passing bool
}

// Kind says what a signal means.
type Kind int

const (
	// Normal signals are no cause.
	Normal Kind = iota
	// Passing signals are a cause if they last.
	Passing
	// Heals: a cause that may end without a person.
	Heals
	// NeedsPerson: a cause that does not.
	NeedsPerson
)

// Row says what a signal of a layer means.
type Row struct {
	Layer Layer
	// Codes are the layer's own reasons; any without.
	Codes []string
	// Text is matched by the layer's message; any without. TextMeans says what it matches, as
	// a predicate of the message, for docs/reference/waits.md.
	Text      *regexp.Regexp
	TextMeans string
	Kind      Kind
	// Reason in the image's status.
	Reason v1alpha1.Reason
	// Sentence precedes the layer's text, and Advice follows it.
	Sentence, Advice string
}

// Rows are all signals that are known. The first one that matches counts; the last row of
// a layer matches any.
func Rows() []Row { return slices.Clone(rows) }

const (
	adviceSecretKeys = "the Secret of spec.secretRef needs keys accessKeyId and secretKey"
	advicePull       = "check the registry of CDI's importer image, and its pull Secrets"
	adviceNamespace  = "check the LimitRanges, quotas and admission policies of the namespace, and the log of cdi-deployment"
	adviceProfile    = "set claimPropertySets (accessModes) in the StorageProfile of its StorageClass"
	adviceQuota      = "free or raise the quota of the namespace"
)

var rows = []Row{
	{Layer: LayerContainer, Codes: []string{"", "ContainerCreating", "PodInitializing", "CrashLoopBackOff"}},
	{Layer: LayerContainer, Codes: []string{"CreateContainerConfigError"}, Text: regexp.MustCompile(`(?i)\bsecret\b`), TextMeans: "names a Secret", Kind: NeedsPerson,
		Reason: v1alpha1.ReasonSecretMissing, Sentence: "the importer cannot start", Advice: adviceSecretKeys},
	{Layer: LayerContainer, Codes: []string{"CreateContainerConfigError"}, Text: regexp.MustCompile(`(?i)\bconfigmap\b`), TextMeans: "names a ConfigMap", Kind: NeedsPerson,
		Reason: v1alpha1.ReasonCertConfigMapMissing, Sentence: "the importer cannot start"},
	{Layer: LayerContainer, Codes: []string{"ErrImagePull", "RegistryUnavailable"}, Kind: Heals,
		Reason: v1alpha1.ReasonImporterNotStarting, Sentence: "the container image of the importer cannot be pulled", Advice: advicePull},
	{Layer: LayerContainer, Codes: []string{"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "SignatureValidationFailed"}, Kind: NeedsPerson,
		Reason: v1alpha1.ReasonImporterNotStarting, Sentence: "the container image of the importer cannot be pulled", Advice: advicePull},
	{Layer: LayerContainer, Codes: []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}, Kind: NeedsPerson,
		Reason: v1alpha1.ReasonImporterNotStarting, Sentence: "the importer cannot start"},
	{Layer: LayerContainer, Kind: Heals, Reason: v1alpha1.ReasonImporterNotStarting, Sentence: "the importer does not start"},

	// The importer Pod exists before the volumes of its claims do, and before the claim of its
	// scratch space does: what refuses that is in the claim's events.
	{Layer: LayerPod, Codes: []string{"Unschedulable"}, Text: regexp.MustCompile(`unbound (immediate )?PersistentVolumeClaim|waiting for (ephemeral volume|volume)|persistentvolumeclaim "[^"]*" (not found|is being deleted)`), TextMeans: "says that the Pod waits for a volume or a claim", Kind: Passing,
		Reason: v1alpha1.ReasonVolumePending, Sentence: "the importer Pod waits for its volume"},
	{Layer: LayerPod, Codes: []string{"Unschedulable", "SchedulingGated", "SchedulerError"}, Kind: Heals,
		Reason: v1alpha1.ReasonImporterUnschedulable, Sentence: "the importer Pod cannot be scheduled", Advice: "free or add a node that it fits on"},
	{Layer: LayerPod, Codes: []string{ReasonConfigMapNotFound}, Kind: NeedsPerson,
		Reason: v1alpha1.ReasonCertConfigMapMissing, Sentence: "the importer Pod is held up"},
	{Layer: LayerPod, Codes: []string{ReasonSecretNotFound}, Kind: NeedsPerson,
		Reason: v1alpha1.ReasonSecretMissing, Sentence: "the importer Pod is held up"},
	{Layer: LayerPod, Codes: []string{"ContainersNotReady", "ContainersNotInitialized", "PodCompleted", "PodFailed", ""}},
	{Layer: LayerPod, Kind: Heals, Reason: v1alpha1.ReasonImporterNotStarting, Sentence: "the importer Pod is held up"},

	{Layer: LayerRunning, Codes: []string{"", "Pending", "ContainerCreating", "PodInitializing", "Pod is running", "Completed", "Scratch space required", "CrashLoopBackOff"}},
	{Layer: LayerRunning, Codes: []string{"Unschedulable"}, Kind: Heals,
		Reason: v1alpha1.ReasonImporterUnschedulable, Sentence: "CDI says", Advice: "free or add a node that it fits on"},
	{Layer: LayerRunning, Codes: []string{"ErrStartingPod"}, Kind: NeedsPerson,
		Reason: v1alpha1.ReasonImporterRefused, Sentence: "CDI cannot create the importer Pod", Advice: adviceNamespace},
	{Layer: LayerRunning, Codes: []string{"ErrExceededQuota"}, Kind: NeedsPerson,
		Reason: v1alpha1.ReasonQuotaExceeded, Sentence: "CDI cannot create the importer Pod", Advice: adviceQuota},
	{Layer: LayerRunning, Codes: []string{"ImagePullFailed"}, Kind: NeedsPerson,
		Reason: v1alpha1.ReasonImporterNotStarting, Sentence: "the container image of the importer cannot be pulled", Advice: advicePull},
	{Layer: LayerRunning, Codes: []string{"CreateContainerConfigError"}, Text: regexp.MustCompile(`(?i)\bsecret\b`), TextMeans: "names a Secret", Kind: NeedsPerson,
		Reason: v1alpha1.ReasonSecretMissing, Sentence: "the importer cannot start", Advice: adviceSecretKeys},
	{Layer: LayerRunning, Kind: Heals, Reason: v1alpha1.ReasonImporting, Sentence: "CDI says"},

	{Layer: LayerBound, Codes: []string{"Bound"}},
	// A claim that CDI populates is Pending until the import has succeeded.
	{Layer: LayerBound, Codes: []string{"", "Pending"}, Text: regexp.MustCompile(`^(PVC \S+ Pending)?$`), TextMeans: "says no more than that the claim is Pending"},
	{Layer: LayerBound, Codes: []string{"NotFound"}, Kind: Passing,
		Reason: v1alpha1.ReasonVolumePending, Sentence: "CDI has not created its claim"},
	{Layer: LayerBound, Codes: []string{"ErrClaimNotValid"}, Text: regexp.MustCompile(`(?i)access ?mode`), TextMeans: "names access modes", Kind: NeedsPerson,
		Reason: v1alpha1.ReasonStorageProfileIncomplete, Sentence: "CDI cannot create its claim", Advice: adviceProfile},
	{Layer: LayerBound, Codes: []string{"ErrExceededQuota"}, Kind: NeedsPerson,
		Reason: v1alpha1.ReasonQuotaExceeded, Sentence: "CDI cannot create its claim", Advice: adviceQuota},
	{Layer: LayerBound, Codes: []string{"ErrClaimNotValid", "ErrResourceExists", "ErrResourceMarkedForDeletion", "ErrClaimLost", "ClaimLost"}, Kind: NeedsPerson,
		Reason: v1alpha1.ReasonVolumePending, Sentence: "CDI cannot use its claim"},
	{Layer: LayerBound, Codes: []string{"CreatingScratchSpace"}, Kind: Passing,
		Reason: v1alpha1.ReasonVolumePending, Sentence: "CDI prepares the import"},
	{Layer: LayerBound, Kind: Heals, Reason: v1alpha1.ReasonVolumePending, Sentence: "CDI says of its claim"},

	{Layer: LayerEvent, Text: regexp.MustCompile(`^$|(?i)successful|^waiting for (first consumer|pod .* to be scheduled)|external populator|^error starting pod`), TextMeans: "is of a step of every import"},
	{Layer: LayerEvent, Text: regexp.MustCompile(`(?i)^(waiting for a volume to be created|external provisioner is provisioning|creating scratch space)|the object has been modified`), TextMeans: "says that the volume is being created, or that a write conflicted", Kind: Passing,
		Reason: v1alpha1.ReasonVolumePending, Sentence: "its volume is not there yet"},
	{Layer: LayerEvent, Text: regexp.MustCompile(`exceeded quota: `), TextMeans: "names an exceeded quota", Kind: NeedsPerson,
		Reason: v1alpha1.ReasonQuotaExceeded, Sentence: "its claim is refused", Advice: adviceQuota},
	{Layer: LayerEvent, Text: regexp.MustCompile(`is forbidden: |denied the request`), TextMeans: "says that a request was denied or is forbidden", Kind: NeedsPerson,
		Reason: v1alpha1.ReasonVolumePending, Sentence: "its claim is refused"},
	{Layer: LayerEvent, Text: regexp.MustCompile(`(?i)storageclass\S* "[^"]*" not found|no storage class is set|ResourceExhausted|OutOfRange|InvalidArgument|insufficient|no space|not enough`), TextMeans: "names a missing StorageClass, a lack of space, or an invalid request", Kind: NeedsPerson,
		Reason: v1alpha1.ReasonVolumePending, Sentence: "its volume cannot be created"},
	{Layer: LayerEvent, Text: regexp.MustCompile(`(?i)failed|error`), TextMeans: "names another failure or error", Kind: Heals,
		Reason: v1alpha1.ReasonVolumePending, Sentence: "its volume cannot be created"},
	{Layer: LayerEvent, Kind: Passing, Reason: v1alpha1.ReasonVolumePending, Sentence: "the latest event of its claim"},

	{Layer: LayerDataVolume, Codes: []string{"", "TransferRunning"}},
	{Layer: LayerDataVolume, Kind: Heals, Reason: v1alpha1.ReasonImporting, Sentence: "CDI says"},

	{Layer: LayerClaim, Codes: []string{"Lost"}, Kind: NeedsPerson, Reason: v1alpha1.ReasonVolumePending, Sentence: "a claim of the import has lost its volume"},
	{Layer: LayerClaim, Codes: []string{"Resizing", "FileSystemResizePending"}},
	{Layer: LayerClaim, Kind: Heals, Reason: v1alpha1.ReasonVolumePending, Sentence: "a claim of the import is held up"},

	{Layer: LayerSnapshot, Text: regexp.MustCompile(`(?i)not support|unimplemented|exceeded quota|limit`), TextMeans: "says that snapshots are not supported, or names a quota or limit", Kind: NeedsPerson, Reason: v1alpha1.ReasonSnapshotting},
	{Layer: LayerSnapshot, Kind: Heals, Reason: v1alpha1.ReasonSnapshotting},

	// A right that the agent lacks is no answer about the image. An authorizer's message
	// begins with the user (responsewriters.Forbidden of the API server).
	{Layer: LayerAnswer, Codes: []string{"Forbidden"}, Text: regexp.MustCompile(`cannot create resource "datavolumes"`), TextMeans: "says that the agent may not create DataVolumes"},
	// A webhook without dry runs, and the agent's own policies of an earlier release, cannot
	// be asked.
	{Layer: LayerAnswer, Codes: []string{"BadRequest"}, Text: regexp.MustCompile(`does not support dry run`), TextMeans: "says that a webhook supports no dry runs"},
	{Layer: LayerAnswer, Codes: []string{"Forbidden"}, Text: regexp.MustCompile(`the agent creates DataVolumes of images or of machines only`), TextMeans: "is of an admission policy of an earlier agent"},
	{Layer: LayerAnswer, Codes: []string{"InternalError", "ServiceUnavailable", "Timeout"}, Text: regexp.MustCompile(`failed calling webhook`), TextMeans: "says that a webhook does not answer", Kind: Heals,
		Reason: v1alpha1.ReasonCDIUnavailable, Sentence: "its DataVolume cannot be created", Advice: "check that CDI's cdi-apiserver is running"},
	{Layer: LayerAnswer, Codes: []string{silence}, Kind: Heals, Reason: v1alpha1.ReasonCDIUnavailable,
		Sentence: "the API server was asked whether it accepts its DataVolume and does not answer", Advice: "check that CDI's cdi-apiserver is running, and other webhooks of DataVolumes"},
	{Layer: LayerAnswer, Codes: []string{"Forbidden"}, Text: regexp.MustCompile(`exceeded quota: `), TextMeans: "names an exceeded quota", Kind: NeedsPerson,
		Reason: v1alpha1.ReasonQuotaExceeded, Sentence: "its DataVolume was refused", Advice: adviceQuota},
	{Layer: LayerAnswer, Text: regexp.MustCompile(`denied the request`), TextMeans: "says that a webhook or policy denied the request", Kind: NeedsPerson,
		Reason: v1alpha1.ReasonDataVolumeRefused, Sentence: "its DataVolume was refused"},
	{Layer: LayerAnswer, Codes: []string{"Invalid", "BadRequest", "Forbidden", "NotFound", "RequestEntityTooLarge"}, Kind: NeedsPerson,
		Reason: v1alpha1.ReasonDataVolumeRefused, Sentence: "its DataVolume was refused"},
	{Layer: LayerAnswer},
}

// maxTextBytes bounds a layer's text in a message.
const maxTextBytes = 512

// signal is one thing that a layer says.
type signal struct {
	layer      Layer
	code, text string
}

// lookUp returns what a signal means; nil where it is no cause.
func lookUp(s signal) *Cause {
	i := slices.IndexFunc(rows, func(r Row) bool {
		return r.Layer == s.layer && (len(r.Codes) == 0 || slices.Contains(r.Codes, s.code)) && (r.Text == nil || r.Text.MatchString(s.text))
	})
	if i < 0 || rows[i].Kind == Normal {
		return nil
	}
	row := rows[i]
	return &Cause{
		Reason: row.Reason, Message: row.message(s),
		NeedsPerson: row.Kind == NeedsPerson, Passing: row.Kind == Passing,
	}
}

// message has the layer's own text, or its reason where there is none.
func (r *Row) message(s signal) string {
	text := v1alpha1.SanitizeText(s.text, maxTextBytes)
	if text == "" {
		text = v1alpha1.SanitizeText(s.code, maxTextBytes)
	}
	if r.Sentence != "" {
		text = r.Sentence + ": " + text
	}
	if r.Advice != "" {
		text = fmt.Sprintf("%s; %s", text, r.Advice)
	}
	return text
}
