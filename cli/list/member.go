package list

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/explain"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Image is a row of get images of one cluster, or of failed images of all.
type Image struct {
	Cluster   string         `json:"cluster,omitempty"`
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Phase     v1alpha1.Phase `json:"phase,omitempty"`
	// Plan is Waiting or Rejected for a planned image that is not created, which has no phase.
	Plan    v1alpha1.PlanItemState `json:"plan,omitempty"`
	Reason  v1alpha1.Reason        `json:"reason,omitempty"`
	Message string                 `json:"message,omitempty"`
	// Unknown: the cluster is silent, or its report is incomplete.
	Unknown bool `json:"unknown,omitempty"`
	// Machines that need it, Bytes of storage and Attempts are absent where they are unknown.
	Machines *int32 `json:"machines,omitempty"`
	Bytes    *int64 `json:"bytes,omitempty"`
	Attempts *int32 `json:"attempts,omitempty"`
	Source   string `json:"source,omitempty"`
}

var imageKind = kind[Image]{
	name: "Image", noun: "image", keyColumns: 2,
	columns: []render.Column{
		{Title: "CLUSTER", Elastic: true, Min: 8}, {Title: "IMAGE", Elastic: true, Min: 14}, {Title: "STATE", Elastic: true, Min: 8}, {Title: "MACHINES", Right: true, Drop: 2}, {Title: "BYTES", Right: true, Drop: 1},
		{Title: "ATTEMPTS", Right: true, Drop: 3}, {Title: "SOURCE", Wide: true}, {Title: "MESSAGE", Wide: true},
	},
	keys: map[string]func(a, b Image) int{
		"bytes":    descending(func(i Image) *int64 { return i.Bytes }),
		"machines": descending(func(i Image) *int32 { return i.Machines }),
		"attempts": descending(func(i Image) *int32 { return i.Attempts }),
	},
}

// NewImages returns an empty list of images.
func NewImages(now time.Time, q Query) (*List[Image], error) { return newList(now, imageKind, q) }

// NewReportedImage returns the row of an image in a cluster's report. unknown is why the
// report may be out of date; empty if it is not.
func NewReportedImage(cluster string, i *v1alpha1.ReportedImage, unknown string) Image {
	row := Image{
		Cluster: cluster, Namespace: i.Namespace, Name: i.Name, Phase: i.Phase, Reason: i.Reason, Message: i.Message, Unknown: unknown != "",
		Machines: &i.References, Bytes: &i.Bytes, Attempts: &i.Attempts, Source: i.Source,
	}
	if plan := i.UnappliedPlan(); plan != nil {
		row.Plan, row.Reason, row.Message = plan.State, plan.Reason, plan.Message
	}
	return row
}

// NewFailedImage returns the row of an image that failed, as a MemberCluster lists it.
func NewFailedImage(cluster string, i *v1alpha1.ImageSummary) Image {
	return Image{Cluster: cluster, Namespace: i.Namespace, Name: i.Name, Phase: v1alpha1.PhaseFailed, Reason: i.Reason, Message: i.Message}
}

// NewLiveImage returns the row of a VMDiskImage.
func NewLiveImage(cluster string, i *v1alpha1.VMDiskImage) Image {
	return Image{
		Cluster: cluster, Namespace: i.Namespace, Name: i.Name, Phase: i.Status.Phase, Reason: i.Status.Reason, Message: i.Status.Message,
		Machines: &i.Status.References.Count, Bytes: ptr.To(i.Spec.DiskSize.Value()), Attempts: &i.Status.Attempts, Source: v1alpha1.RedactSource(i.Spec.URL),
	}
}

func (i Image) rowName() string   { return i.Name }
func (i Image) reference() string { return render.Reference("VMDiskImage", i.Name) }
func (i Image) isUnknown() bool   { return i.Unknown }
func (i Image) isFailing() bool {
	return i.Phase == v1alpha1.PhaseFailed || i.Plan == v1alpha1.PlanItemRejected
}

func (i Image) cells(time.Time) []render.Line {
	word := cmp.Or(explain.ShownPhase(i.Phase, i.Plan), "new")
	if i.Reason != "" && i.Phase != v1alpha1.PhaseSucceeded {
		word += " " + string(i.Reason)
	}
	sign := render.Waiting
	switch {
	case i.Unknown:
		sign = render.Unknown
	case i.isFailing():
		sign = render.Failed
	case i.Plan != "" && i.Reason != "":
		sign = render.Attention
	case i.Phase == v1alpha1.PhaseSucceeded:
		sign = render.Done
	case i.Phase == v1alpha1.PhaseSyncing:
		sign = render.Running
	}
	bytes := "-"
	if i.Bytes != nil {
		bytes = render.Bytes(*i.Bytes)
	}
	return []render.Line{
		render.Words(i.Cluster), render.Words(i.Namespace + "/" + i.Name), sign.With("%s", word), render.Words(countOf(i.Machines)), render.Words(bytes), render.Words(countOf(i.Attempts)),
		render.Words(i.Source), render.Words(i.Message),
	}
}

// Machine is a row of get machines.
type Machine struct {
	Cluster   string                `json:"cluster,omitempty"`
	Namespace string                `json:"namespace"`
	Name      string                `json:"name"`
	Phase     v1alpha1.MachinePhase `json:"phase,omitempty"`
	Reason    string                `json:"reason,omitempty"`
	Message   string                `json:"message,omitempty"`
	Image     string                `json:"image,omitempty"`
	CreatedAt metav1.Time           `json:"createdAt"`
}

var machineKind = kind[Machine]{
	name: "Machine", noun: "machine",
	columns: []render.Column{
		{Title: "MACHINE", Elastic: true, Min: 14}, {Title: "STATE", Elastic: true, Min: 8}, {Title: "IMAGE", Elastic: true, Min: 10, Drop: 1}, {Title: "AGE", Right: true, Drop: 2, Age: true}, {Title: "MESSAGE", Wide: true},
	},
	keys: map[string]func(a, b Machine) int{"age": oldestFirst(func(m Machine) *metav1.Time { return &m.CreatedAt })},
}

// NewMachines returns an empty list of machines.
func NewMachines(now time.Time, q Query) (*List[Machine], error) { return newList(now, machineKind, q) }

// NewMachine returns the row of a VirtualMachine.
func NewMachine(cluster string, m *v1alpha1.VirtualMachine) Machine {
	return Machine{
		Cluster: cluster, Namespace: m.Namespace, Name: m.Name, Phase: m.Status.Phase, Reason: string(m.Status.Reason), Message: m.Status.Message,
		Image: cmp.Or(m.Spec.VMDiskImageRef.Namespace, m.Namespace) + "/" + m.Spec.VMDiskImageRef.Name, CreatedAt: m.CreationTimestamp,
	}
}

func (m Machine) rowName() string   { return m.Name }
func (m Machine) reference() string { return render.Reference("VirtualMachine", m.Name) }
func (m Machine) isUnknown() bool   { return m.Phase == "" }
func (m Machine) isFailing() bool   { return m.Phase == v1alpha1.MachineFailed }

func (m Machine) cells(now time.Time) []render.Line {
	word := cmp.Or(string(m.Phase), "new")
	if m.Reason != "" && m.Phase != v1alpha1.MachineReady {
		word += " " + m.Reason
	}
	sign := render.Waiting
	switch m.Phase {
	case v1alpha1.MachineFailed:
		sign = render.Failed
	case v1alpha1.MachineReady:
		sign = render.Done
	}
	return []render.Line{render.Words(m.Namespace + "/" + m.Name), sign.With("%s", word), render.Words(m.Image), render.Words(render.Age(now, m.CreatedAt.Time)), render.Words(m.Message)}
}
