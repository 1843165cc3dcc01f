package tree

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/why"
)

// ImageSnapshot is what a member says of an image. What could not be read is empty.
type ImageSnapshot struct {
	Now         time.Time
	Image       *v1alpha1.VMDiskImage
	DataVolumes []cdiv1.DataVolume
	Claims      []corev1.PersistentVolumeClaim
	Snapshots   []snapshotv1.VolumeSnapshot
	Pods        []corev1.Pod
	// Machines are those that hold it, as far as they could be read.
	Machines []v1alpha1.VirtualMachine
	All      bool
}

// NewImage returns an image with its revisions, their storage, and what holds it.
func NewImage(s ImageSnapshot) *Node {
	img := s.Image
	st := &img.Status
	root := imageSummary(img)
	code := why.NewImage(explainedImage(s.Now, img)).ExitCode()
	root.code = &code
	for _, revision := range revisionsOf(s) {
		n := &Node{Name: "revision " + revision}
		switch {
		case st.Serving != nil && st.Serving.Revision == revision:
			n.State, n.Words = Done, "serves"
		case st.Revision == revision:
			n.State, n.Words = root.State, strings.TrimSpace("wanted "+st.Progress)
		default:
			n.Words = "replaced"
		}
		n.add(storageOf(s, revision)...)
		root.add(n)
	}
	root.add(holdersOf(s))
	return root
}

// revisionsOf lists the revisions that the status or any object names, the newest first.
func revisionsOf(s ImageSnapshot) []string {
	var all []string
	add := func(revision string) {
		if revision != "" && !slices.Contains(all, revision) {
			all = append(all, revision)
		}
	}
	add(s.Image.Status.Revision)
	if s.Image.Status.Serving != nil {
		add(s.Image.Status.Serving.Revision)
	}
	for _, r := range s.Image.Status.Revisions {
		add(r.Revision)
	}
	for _, o := range s.DataVolumes {
		add(o.Labels[v1alpha1.LabelRevision])
	}
	for _, o := range s.Claims {
		add(o.Labels[v1alpha1.LabelRevision])
	}
	return all
}

func storageOf(s ImageSnapshot, revision string) []*Node {
	var nodes []*Node
	of := func(o metav1.Object) bool { return o.GetLabels()[v1alpha1.LabelRevision] == revision }
	claimed := map[string]bool{}
	for i := range s.DataVolumes {
		if dv := &s.DataVolumes[i]; of(dv) {
			n := dataVolumeNode(dv)
			for j := range s.Claims {
				if c := &s.Claims[j]; isOwnedBy(c, dv) || c.Name == dv.Name {
					n.add(claimNode(c))
					claimed[c.Name] = true
				}
			}
			nodes = append(nodes, n)
		}
	}
	for i := range s.Claims {
		if c := &s.Claims[i]; of(c) && !claimed[c.Name] {
			nodes = append(nodes, claimNode(c))
		}
	}
	for i := range s.Snapshots {
		if v := &s.Snapshots[i]; of(v) {
			nodes = append(nodes, snapshotNode(v))
		}
	}
	for i := range s.Pods {
		if p := &s.Pods[i]; of(p) {
			nodes = append(nodes, podNode(p))
		}
	}
	return nodes
}

func isOwnedBy(o, owner metav1.Object) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == owner.GetUID() })
}

func dataVolumeNode(dv *cdiv1.DataVolume) *Node {
	n := &Node{Kind: "DataVolume", Name: dv.Name, Words: string(dv.Status.Phase), State: Running}
	switch dv.Status.Phase {
	case cdiv1.Succeeded:
		n.State = Done
	case cdiv1.Failed:
		n.State = Failed
	case cdiv1.Pending, cdiv1.PendingPopulation, cdiv1.WaitForFirstConsumer, cdiv1.PhaseUnset:
		n.State = Waiting
		n.Words = cmp.Or(n.Words, "new")
	}
	if progress := string(dv.Status.Progress); progress != "" && progress != "N/A" && n.State == Running {
		n.Words += " " + progress
	}
	return n
}

func claimNode(c *corev1.PersistentVolumeClaim) *Node {
	n := &Node{Kind: "PersistentVolumeClaim", Name: c.Name, Words: string(c.Status.Phase), State: Waiting}
	switch c.Status.Phase {
	case corev1.ClaimBound:
		n.State = Done
	case corev1.ClaimLost:
		n.State = Failed
	}
	if c.Spec.StorageClassName != nil {
		n.Words += " " + *c.Spec.StorageClassName
	}
	size := c.Status.Capacity[corev1.ResourceStorage]
	if size.IsZero() {
		size = c.Spec.Resources.Requests[corev1.ResourceStorage]
	}
	n.Bytes = size.Value()
	return n
}

func snapshotNode(v *snapshotv1.VolumeSnapshot) *Node {
	n := &Node{Kind: "VolumeSnapshot", Name: v.Name, State: Waiting, Words: "not ready"}
	if st := v.Status; st != nil {
		switch {
		case st.ReadyToUse != nil && *st.ReadyToUse:
			n.State, n.Words = Done, "readyToUse"
		case st.Error != nil && st.Error.Message != nil:
			n.State, n.Message = Failed, *st.Error.Message
		}
	}
	if v.Spec.VolumeSnapshotClassName != nil {
		n.Words += " " + *v.Spec.VolumeSnapshotClassName
	}
	return n
}

func podNode(p *corev1.Pod) *Node {
	n := &Node{Kind: "Pod", Name: p.Name, Words: string(p.Status.Phase), State: Running, Since: p.Status.StartTime}
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		n.State = Done
	case corev1.PodFailed:
		n.State, n.Message = Failed, p.Status.Message
	case corev1.PodPending:
		n.State = Waiting
	}
	return n
}

func holdersOf(s ImageSnapshot) *Node {
	refs := s.Image.Status.References
	if refs.Count == 0 {
		n := &Node{Name: "referenced by nothing", Since: refs.UnreferencedSince}
		return n
	}
	n := &Node{Name: fmt.Sprintf("referenced by %d", refs.Count)}
	var holders []*Node
	for _, holder := range refs.Holders {
		namespace, name, _ := strings.Cut(holder, "/")
		child := &Node{Kind: "VirtualMachine", Namespace: namespace, Name: name}
		for i := range s.Machines {
			if m := &s.Machines[i]; m.Namespace == namespace && m.Name == name {
				child = machineSummary(m, nil)
				if p := m.Status.Pinned; p != nil && s.Image.Status.Serving != nil && p.Revision != s.Image.Status.Serving.Revision {
					child.Words += " pinned to " + p.Revision
				}
			}
		}
		holders = append(holders, child)
	}
	n.add(holders...)
	if more := int(refs.Count) - len(refs.Holders); more > 0 {
		n.add(&Node{Noun: "more machine", Count: more})
	}
	return n
}

// explainedImage is what kubectl ot why goes by: exit codes and who is waited for are the same.
func explainedImage(now time.Time, img *v1alpha1.VMDiskImage) why.ImageSnapshot {
	return why.Member{Now: now, Images: []v1alpha1.VMDiskImage{*img}}.OfImage(img.Namespace, img.Name)
}

func imageSummary(img *v1alpha1.VMDiskImage) *Node {
	st := &img.Status
	n := &Node{Kind: "VMDiskImage", Namespace: img.Namespace, Name: img.Name, State: Waiting, Words: joinWords(st.Phase, st.Reason), Message: st.Message, Bytes: img.Spec.DiskSize.Value()}
	switch isHeld := why.NewImage(explainedImage(time.Time{}, img)).Verdict == why.Held; {
	case isHeld, st.Phase == v1alpha1.PhasePrunePending:
		n.State = Attention
	case st.Phase == v1alpha1.PhaseSucceeded:
		n.State = Done
	case st.Phase == v1alpha1.PhaseFailed:
		n.State = Failed
	case st.Phase == v1alpha1.PhaseSyncing:
		n.State = Running
	}
	return n
}

func joinWords[A, B ~string](a A, b B) string {
	text := strings.TrimSpace(string(a) + " " + string(b))
	return cmp.Or(text, "new")
}
